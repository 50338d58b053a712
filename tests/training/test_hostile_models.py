"""A model's file that is damaged, or that somebody else has made: refused in one sentence."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headtail import HeadtailError, Labels
from headtail.data.load import load
from headtail.files.tensors import as_bytes, save_tensors
from headtail.training import checkpoint
from headtail.training.config import Run
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer

DATA = "synthetic:points=200,test=50,features=80,labels=20"
SCHEMES = {
    "softmax": "softmax",
    "queue": "queue(50):importance",
    "frequency": "frequency:importance@4",
    "block": "block:importance@4",
    "adversarial": "adversarial:importance@4",
}
Change = Callable[[dict[str, Tensor], dict[str, Any]], None]
NAN = float("nan")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    data = load(DATA)
    for name, scheme in SCHEMES.items():
        Trainer(Run(scheme=scheme, dim=8, epochs=1, batch=32), data, folder / name).fit()
    return {name: folder / name for name in SCHEMES}


def changed(source: Path, folder: Path, change: Change) -> Path:
    """A copy of a run's model with some change; its checksum is right."""
    tensors, facts = checkpoint.load(source / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors, facts)
    save_tensors(folder / "model.safetensors", tensors, facts)
    return folder


def refused(source: Path, folder: Path, change: Change) -> str:
    with pytest.raises(HeadtailError) as raised:
        load_model(changed(source, folder, change))
    sentence = str(raised.value)
    assert str(folder / "model.safetensors") in sentence
    assert sentence.endswith("Train the model again, or restore the file from a copy.")
    return sentence


def setting(name: str, value: Any) -> Change:
    return lambda tensors, facts: facts["run"].update({name: value})


def fact(name: str, value: Any) -> Change:
    return lambda tensors, facts: facts.update({name: value})


def tensor(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors, facts: tensors.update({name: make(tensors[name])})


@pytest.mark.parametrize("name", SCHEMES)
def test_an_unchanged_copy_is_loaded(runs, tmp_path, name):
    load_model(changed(runs[name], tmp_path, lambda tensors, facts: None))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting("evil", 1), "has the setting `evil`, which is unknown"),
        (setting("lr", "0.1"), "`lr` must be a finite number"),
        (setting("length", 10_001), "`length` is at most 10,000, but got 10,001"),
        (setting("dim", None), "has no value for `dim`"),
        (setting("dim", 10**9), "has shape"),
        (setting("dim", 10**400), "the settings of its"),
        (setting("lr", 10**400), "the settings of its run are invalid"),
        (setting("scheme", "no-such-scheme"), "no-such-scheme"),
        (setting("scheme", "mixture(" * 3000 + "uniform" + ")" * 3000), "the settings of its run"),
        (setting("encoder", "sasrec"), "it has no tensor `model.encoder.positions`"),
        (setting("layers", 10**9), "`layers`, but few tensors"),
        (fact("run", []), "its `run` is list"),
        (fact("num_features", 10**12), "has shape [80, 8], but must have [1000000000000, 8]"),
        (fact("num_features", -1), "its `num_features` is -1"),
        (fact("num_features", "80"), "its `num_features` is '80'"),
        (fact("smoothing", NAN), "`smoothing` must be a finite number"),
        (fact("features", "magic"), "of an unknown kind"),
        (fact("features", "users"), "contradict its tensors `users.names`"),
        (fact("feature_names", ["a"]), "its `feature_names` is list"),
        (fact("relations", "knows"), "its `relations` is 'knows'"),
        (fact("picture", [10**6, 10**6]), "its `features` contradict its `picture`"),
        (fact("data", 7), "its `data` is 7"),
        (fact("text", {"kind": "tfidf"}), "its `text` has other facts"),
        (
            fact("text", {"kind": "tfidf", "ngrams": 2, "num_columns": 10**9}),
            "its `text` has not 80 columns",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_settings_and_facts_that_make_no_sense_are_refused(runs, tmp_path, change, words):
    assert words in refused(runs["softmax"], tmp_path, change)


def test_a_sampler_that_would_need_more_memory_than_there_is_is_refused(runs, tmp_path):
    refused(runs["softmax"], tmp_path, setting("scheme", "queue(1000000000000000):importance"))


@pytest.mark.parametrize(
    "scheme",
    [
        "queue(40000000):tail",
        "mixture(uniform,queue(40000000)):importance",
        "mixture(" + ",".join(["queue(1000000)"] * 40) + "):importance",
    ],
    ids=["one", "inside another", "many"],
)
def test_a_queue_is_not_allocated_before_it_is_compared_with_the_file(runs, tmp_path, scheme):
    """A machine that has 320 MB would allocate them, and only then find no such tensor."""
    said = refused(runs["softmax"], tmp_path, setting("scheme", scheme))
    assert re.search(r"they ask for [\d,]+ bytes, but its tensors have [\d,]+", said)


def test_an_image_of_impossible_size_is_refused(runs, tmp_path):
    def change(tensors, facts):
        facts |= {"features": "images", "picture": [10**5, 10**5], "num_features": 3 * 10**10}

    assert "its `picture` is 100000 × 100000" in refused(runs["softmax"], tmp_path, change)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "a scalar": lambda x: torch.tensor(1.0),
    "empty": lambda x: x[:0],
    "longer": lambda x: torch.cat([x, x]),
    "deeper": lambda x: x[None],
    "float8": lambda x: x.float().to(torch.float8_e4m3fn),
    "complex": lambda x: x.to(torch.complex64),
    "without memory": lambda x: torch.zeros(0, 2**40),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCHEMES)
def test_every_tensor_has_the_shape_and_dtype_that_the_settings_imply(runs, tmp_path, name, way):
    tensors, _ = checkpoint.load(runs[name] / "model.safetensors")
    for one, value in tensors.items():
        if way == "empty" and not value.numel():
            continue
        if way == "longer" and (not value.dim() or not value.numel()):
            continue
        refused(runs[name], tmp_path, tensor(one, WAYS[way]))


@pytest.mark.parametrize("name", SCHEMES)
def test_no_tensor_of_the_model_may_be_missing(runs, tmp_path, name):
    tensors, _ = checkpoint.load(runs[name] / "model.safetensors")
    for one in tensors.keys() - {"labels.names", "labels.counts"}:
        words = refused(runs[name], tmp_path, lambda tensors, facts, one=one: tensors.pop(one))
        assert f"it has no tensor `{one}`" in words


@pytest.mark.parametrize("extra", ["model.encoder.more", "more"])
def test_a_tensor_too_many_is_refused(runs, tmp_path, extra):
    change = fact("sparse_features", True)
    assert f"`{extra}`" in refused(
        runs["softmax"],
        tmp_path,
        lambda tensors, facts: [change(tensors, facts), tensors.update({extra: torch.zeros(2)})],
    )


@pytest.mark.parametrize(
    ("scheme", "table", "value"),
    [
        ("queue", "past", 20),
        ("queue", "past", -1),
        ("block", "order", 20),
        ("block", "place", 1000),
        ("block", "start", 21),
        ("block", "size", -1),
        ("adversarial", "leaf", 32),
        ("adversarial", "label", 20),
    ],
)
def test_ids_out_of_range_in_a_samplers_tables_are_refused(runs, tmp_path, scheme, table, value):
    name = f"model.head.loss.sampler.{table}"
    change = tensor(name, lambda x: torch.full_like(x, value))
    assert f"`model.head.loss.sampler.{table}` holds" in refused(runs[scheme], tmp_path, change)


def test_blocks_that_reach_beyond_the_labels_are_refused(runs, tmp_path):
    change = tensor("model.head.loss.sampler.size", lambda x: torch.full_like(x, 20))
    assert "sampler.start` holds" in refused(runs["block"], tmp_path, change)


def test_a_table_that_contradicts_the_counts_is_refused(runs, tmp_path):
    change = tensor("model.head.loss.sampler.cumulative", torch.zeros_like)
    assert "contradicts the counts" in refused(runs["frequency"], tmp_path, change)


@pytest.mark.parametrize("state", [[51, 0], [3, 50], [-1, 0], [0, -1]])
def test_a_queue_that_is_fuller_than_full_is_refused(runs, tmp_path, state):
    change = tensor("model.head.loss.sampler.extra", lambda x: torch.tensor(state))
    assert "not the state of a queue of 50 labels" in refused(runs["queue"], tmp_path, change)


@pytest.mark.parametrize("scheme", ["block", "adversarial"])
@pytest.mark.parametrize("numbers", [[NAN] * 3, [-1.0, 0, 0], [0.5, 0, 0], [1.0, 1, 10**15]])
def test_a_memory_that_makes_no_sense_is_refused(runs, tmp_path, scheme, numbers):
    change = tensor(
        "model.head.loss.sampler.extra", lambda x: torch.tensor(numbers, dtype=torch.float64)
    )
    refused(runs[scheme], tmp_path, change)


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.encoder.weight", "model.head.weight", "model.head.bias"])
def test_weights_that_are_not_finite_are_counted_and_refused(runs, tmp_path, name, value):
    def change(tensors, facts):
        tensors[name].view(-1)[3:5] = value

    sentence = refused(runs["softmax"], tmp_path, change)
    assert (
        f"2 of the {160 if 'head.w' in name else 640 if 'enc' in name else 20} values" in sentence
    )
    assert f"`{name}` are NaN or infinite" in sentence


@pytest.mark.parametrize("value", [3e38, -1e20])
@pytest.mark.parametrize("name", ["model.encoder.weight", "model.head.weight", "model.head.bias"])
def test_finite_weights_that_overflow_are_refused_with_their_file(runs, tmp_path, name, value):
    def change(tensors, facts):
        tensors[name].view(-1)[3:5] = value

    sentence = refused(runs["softmax"], tmp_path, change)
    assert f"values of `{name}` are so large that scores overflow" in sentence
    assert "model.safetensors" in sentence


@pytest.mark.parametrize(
    "counts",
    [
        torch.full((20,), -1),
        torch.full((20,), NAN, dtype=torch.float64),
        torch.zeros(20, dtype=torch.int64),
        torch.ones(19, dtype=torch.int64),
        torch.ones(21, dtype=torch.int64),
    ],
    ids=["negative", "NaN", "zero", "too few", "too many"],
)
def test_counts_of_labels_that_make_no_sense_are_refused(runs, tmp_path, counts):
    refused(runs["softmax"], tmp_path, tensor("labels.counts", lambda x: counts))


NAMES = {
    "too few": as_bytes(["a"] * 19),
    "an object": as_bytes({}),
    "text": as_bytes("a" * 20),
    "fractions": as_bytes([0.5] * 20),
    "lists": as_bytes([["a"]] * 20),
    "nulls": as_bytes([None] * 20),
    "mixed": as_bytes(["a", 1] * 10),
    "large numbers": as_bytes([10**40] * 20),
    "nested": torch.frombuffer(bytearray(b"[" * 200_000), dtype=torch.uint8),
    "not UTF-8": torch.frombuffer(bytearray(b"\xff\xfe"), dtype=torch.uint8),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_labels_are_text_or_whole_numbers(runs, tmp_path, kind):
    assert "names" in refused(
        runs["softmax"], tmp_path, tensor("labels.names", lambda x: NAMES[kind])
    )


@pytest.mark.parametrize("kind", NAMES)
def test_labels_with_such_names_are_refused_too(tmp_path, kind):
    path = tmp_path / "labels.safetensors"
    tensors = {"counts": torch.ones(20, dtype=torch.int64), "names": NAMES[kind]}
    save_tensors(path, tensors, {"kind": "labels", "smoothing": 0.0})
    with pytest.raises(HeadtailError, match="is damaged") as raised:
        Labels.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("missing", ["counts", "names", "smoothing"])
def test_labels_without_a_part_are_refused(tmp_path, missing):
    path = tmp_path / "labels.safetensors"
    tensors = {"counts": torch.ones(2, dtype=torch.int64), "names": as_bytes(None)}
    tensors.pop(missing, None)
    facts = {"kind": "labels"} if missing == "smoothing" else {"kind": "labels", "smoothing": 0.0}
    save_tensors(path, tensors, facts)
    with pytest.raises(HeadtailError, match="it lacks counts or names"):
        Labels.load(path)


def test_facts_that_are_nested_too_deeply_are_refused(tmp_path):
    header = json.dumps({"__metadata__": {"facts": "[" * 100_000}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(HeadtailError, match="cannot be read as a checkpoint"):
        load_model(tmp_path)
