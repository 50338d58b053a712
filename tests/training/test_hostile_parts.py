"""Models with more than weights (terms of texts, users, features of items) that are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headtail import HeadtailError
from headtail.cli import main
from headtail.files.tensors import as_bytes, save_tensors
from headtail.training import checkpoint
from headtail.training.saved_model import load_model

SMALL = ["--dim", "8", "--epochs", "1", "--device", "cpu"]
WORDS = ["red", "blue", "green", "black"]
Change = Callable[[dict[str, Tensor], dict[str, Any]], object]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    texts = [f"__label__l{i % 4} {WORDS[i % 4]} {WORDS[i % 3]}\n" for i in range(80)]
    (folder / "train.txt").write_text("".join(texts))
    (folder / "test.txt").write_text("".join(texts[:20]))
    items = [f"l{i},{WORDS[i]} thing\n" for i in range(4)]
    (folder / "items.csv").write_text("item_id,title\n" + "".join(items))
    pairs = [f"u{i % 10},i{(i * 7 + i // 10) % 12}\n" for i in range(100)]
    (folder / "pairs.csv").write_text("user_id,item_id\n" + "".join(pairs))
    events = [f"u{i % 10},i{(i * 7) % 12},{i}\n" for i in range(200)]
    (folder / "log.csv").write_text("user_id,item_id,timestamp\n" + "".join(events))
    items_of = ["--item-features", str(folder / "items.csv"), "--validation", "0"]
    data = {
        "text": ["train.txt", "--test", str(folder / "test.txt")],
        "items": ["train.txt", "--test", str(folder / "test.txt"), *items_of],
        "users": ["pairs.csv"],
        "sasrec": ["log.csv", "--encoder", "sasrec", "--heads", "1"],
        "gru": ["log.csv", "--encoder", "gru", "--layers", "2"],
    }
    for name, (file, *options) in data.items():
        scheme = "within-batch:importance" if name == "items" else "softmax"
        out = ["--out", str(folder / name), "--scheme", scheme]
        assert main(["train", str(folder / file), *options, *SMALL, *out]) == 0
    return {name: folder / name for name in data}


def refused(source: Path, folder: Path, change: Change) -> str:
    tensors, facts = checkpoint.load(source / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors, facts)
    save_tensors(folder / "model.safetensors", tensors, facts)
    with pytest.raises(HeadtailError) as raised:
        load_model(folder)
    assert str(folder / "model.safetensors") in str(raised.value)
    return str(raised.value)


def setting(**settings: Any) -> Change:
    return lambda tensors, facts: facts["run"].update(settings)


def filled(name: str, value: float, place: int = 0) -> Change:
    def change(tensors, facts):
        tensors[name].view(-1)[place] = value

    return change


@pytest.mark.parametrize("kind", ["text", "items", "users", "sasrec", "gru"])
def test_an_unchanged_model_is_loaded(runs, kind):
    _, _, facts = load_model(runs[kind])
    assert ("text" in facts) == (kind in ("text", "items"))
    assert ("users" in facts) == (kind == "users")


@pytest.mark.parametrize("kind", ["text", "items", "users", "sasrec", "gru"])
def test_every_tensor_has_the_shape_and_dtype_that_the_settings_imply(runs, tmp_path, kind):
    tensors, _ = checkpoint.load(runs[kind] / "model.safetensors")
    for name in tensors:
        for odd in (torch.tensor(1.0), torch.zeros(0, 2**40), tensors[name].to(torch.complex64)):
            refused(runs[kind], tmp_path, lambda tensors, _, n=name, o=odd: tensors.update({n: o}))
        if name not in ("labels.names", "labels.counts"):
            refused(runs[kind], tmp_path, lambda tensors, _, n=name: tensors.pop(n))


@pytest.mark.parametrize("value", [-1, 10**6])
def test_columns_of_items_are_within_the_tower(runs, tmp_path, value):
    name = "model.head.item_columns"
    assert f"`{name}` holds {value}" in refused(runs["items"], tmp_path, filled(name, value))


@pytest.mark.parametrize(
    ("kind", "name"), [("items", "model.head.item_offsets"), ("users", "users.had_offsets")]
)
@pytest.mark.parametrize(("value", "place"), [(1, 0), (10**6, 1), (-1, 1), (0, -1), (10**6, -1)])
def test_offsets_rise_from_0_to_the_number_of_entries(runs, tmp_path, kind, name, value, place):
    words = refused(runs[kind], tmp_path, filled(name, value, place))
    assert f"`{name}` does not rise from 0" in words


@pytest.mark.parametrize("value", [-1, 12])
def test_users_had_labels_that_there_are(runs, tmp_path, value):
    assert "`users.had` holds" in refused(runs["users"], tmp_path, filled("users.had", value))


@pytest.mark.parametrize("names", [None, [], ["u"] * 9, "uuuuuuuuuu", [1.5] * 10])
def test_users_have_names(runs, tmp_path, names):
    refused(
        runs["users"], tmp_path, lambda tensors, _: tensors.update({"users.names": as_bytes(names)})
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, facts: facts["text"].update(kind="magic"),
        lambda tensors, facts: facts["text"].update(kind=[]),
        lambda tensors, facts: facts["text"].update(ngrams=10**9),
        lambda tensors, facts: facts["text"].update(ngrams="2"),
        lambda tensors, facts: facts["text"].update(num_columns=10**12),
        lambda tensors, facts: facts["text"].update(num_columns=1),
        lambda tensors, facts: facts["text"].update(kind="hashing"),
        lambda tensors, facts: facts["text"].update(evil=1),
        lambda tensors, facts: facts.update(text=[]),
        lambda tensors, facts: tensors["text.terms"].fill_(255),
        lambda tensors, facts: tensors["text.terms"].fill_(ord("a")),
        lambda tensors, facts: tensors["text.terms"].fill_(ord("\n")),
        lambda tensors, facts: tensors["text.idf"].fill_(float("nan")),
    ],
)
def test_impossible_terms_of_texts_are_refused(runs, tmp_path, change):
    refused(runs["text"], tmp_path, change)


@pytest.mark.parametrize("kind", ["sasrec", "gru"])
@pytest.mark.parametrize(
    "settings",
    [
        {"layers": 10**9},
        {"layers": 3},
        {"layers": 1},
        {"dim": 10**9},
        {"tied": False},
        {"encoder": "bag"},
    ],
    ids=str,
)
def test_settings_of_sequence_encoders_fit_their_tensors(runs, tmp_path, kind, settings):
    refused(runs[kind], tmp_path, setting(**settings))


@pytest.mark.parametrize("settings", [{"length": 10**12}, {"length": 49}, {"heads": 3}], ids=str)
def test_settings_of_attention_fit_their_tensors(runs, tmp_path, settings):
    refused(runs["sasrec"], tmp_path, setting(**settings))


@pytest.mark.parametrize("number", [11, 13, 10**12])
def test_a_model_of_sequences_has_a_feature_for_each_label(runs, tmp_path, number):
    words = refused(runs["gru"], tmp_path, lambda _, facts: facts.update(num_features=number))
    assert "its `num_features` is" in words
