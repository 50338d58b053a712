"""A model of transformers whose files are damaged, or whose configuration lies about its sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from headtail import HeadtailError, Labels
from headtail.files.tensors import as_bytes
from headtail.integrations.transformers import HeadtailForSequenceClassification

load = HeadtailForSequenceClassification.from_pretrained


@pytest.fixture
def folder(tmp_path) -> Path:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    encoder = BertModel(BertConfig(vocab_size=40, num_attention_heads=2, **sizes))
    labels = Labels.zipf(30)
    model = HeadtailForSequenceClassification.of(encoder, labels, "uniform:importance@4")
    model.save_pretrained(tmp_path)
    return tmp_path


def configured(folder: Path, **changes) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    encoder = changes.pop("encoder", {})
    path.write_text(json.dumps({**config, **changes, "encoder": {**config["encoder"], **encoder}}))


def test_an_unchanged_folder_is_loaded(folder):
    assert load(folder).head.weight.shape == (30, 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 10**9},
        {"dim": 17},
        {"encoder": {"vocab_size": 10**10}},
        {"encoder": {"intermediate_size": 10**9}},
        {"encoder": {"hidden_size": 2 * 10**6}},
    ],
    ids=str,
)
def test_sizes_are_compared_before_anything_is_allocated(folder, changes):
    configured(folder, **changes)
    with pytest.raises(HeadtailError, match="do not fit together"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("labels.counts", torch.full((30,), -1)),
        ("labels.counts", torch.tensor(3)),
        ("labels.names", as_bytes(["a"] * 29)),
        ("labels.names", as_bytes({"a": 1})),
        ("labels.names", torch.zeros(3)),
        ("labels.names", torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8)),
    ],
)
def test_labels_that_make_no_sense_are_refused(folder, name, tensor):
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: tensor}, path, {"format": "pt"})
    with pytest.raises(HeadtailError, match="is damaged") as raised:
        load(folder)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("name", ["labels.counts", "labels.names"])
def test_weights_without_labels_are_not_headtails(folder, name):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(HeadtailError, match="was not saved by a model of headtail"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100])
def test_a_file_that_is_cut_is_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(HeadtailError, match="cannot be read"):
        load(folder)
