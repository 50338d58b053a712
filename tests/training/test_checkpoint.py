"""Checkpoints: whole or not at all, and nothing forgotten."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from headtail import Labels, Mixture, Queue, RowAdam, Uniform
from headtail.data.cache import cached
from headtail.errors import HeadtailError
from headtail.files.atomic import write_text
from headtail.files.tensors import save_tensors
from headtail.rows.decay import owed
from headtail.training import checkpoint

TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3).T,
    "rows": torch.tensor([3, 1]),
    "none": torch.zeros(0, 4),
}
FACTS = {"curve": [[1, "loss", 0.1]], "best": float("inf"), "first": None}


def test_what_is_loaded_is_what_was_saved(tmp_path):
    path = tmp_path / "deep" / "er" / "checkpoint.safetensors"
    save_tensors(path, TENSORS, FACTS)
    tensors, facts = checkpoint.load(path)
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(tensors[name], TENSORS[name]) and tensors[name].dtype == TENSORS[name].dtype
        for name in tensors
    )
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.safetensors"], (
        "no temporary file is left"
    )


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_in_rust(*_, **__):
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "what", "how"),
    [
        (safetensors.torch, "save_file", full),
        (safetensors.torch, "save_file", full_in_rust),
        (os, "replace", full),
        (os, "fsync", full),
        (os, "replace", interrupted),
    ],
    ids=["writing", "writing in safetensors", "renaming", "syncing", "Ctrl-C"],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    where, what, how, tmp_path, monkeypatch
):
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, TENSORS, FACTS)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(where, what, how)
        kind = KeyboardInterrupt if how is interrupted else HeadtailError
        with pytest.raises(kind) as raised:
            save_tensors(path, {"weight": torch.ones(2)}, {})
    if kind is HeadtailError:
        assert "checkpoint.safetensors` cannot be written" in str(raised.value)
        assert "cannot be written: No space left on device. What" in str(raised.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_may_be_read_by_whoever_may_read_a_plain_one(tmp_path, monkeypatch, mask):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    before = os.umask(mask)
    try:
        (tmp_path / "plain").write_text("")
        save_tensors(tmp_path / "model.safetensors", {"a": torch.zeros(2)}, {})
        write_text(tmp_path / "run.toml", "")
        cached([], {"reader": str(tmp_path)}, lambda store: store.append("a", np.zeros(2)))
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    modes = {file.name: file.stat().st_mode & 0o777 for file in files}
    names = {"plain", "model.safetensors", "run.toml", "about.json", "verified.json", "a"}
    assert names == modes.keys()
    assert set(modes.values()) == {0o666 & ~mask}


def test_a_folder_that_is_a_file_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (
        tmp_path / "file" / "checkpoint.safetensors",
        tmp_path / "file" / "deep" / "checkpoint.safetensors",
    ):
        with pytest.raises(HeadtailError, match=r"cannot be written: `.*file` is not a folder"):
            save_tensors(path, TENSORS, FACTS)


@pytest.mark.parametrize(
    "content", ["missing", "empty", "truncated", "text", "another program's", "a list for facts"]
)
def test_a_file_that_is_not_a_checkpoint_gets_a_sentence(content, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, TENSORS, FACTS)
    if content == "missing":
        path.unlink()
    elif content == "another program's":
        safetensors.torch.save_file({"weight": torch.ones(2)}, path)
    elif content == "a list for facts":
        safetensors.torch.save_file({"weight": torch.ones(2)}, path, {"facts": "[1]"})
    else:
        path.write_bytes(
            {"empty": b"", "truncated": path.read_bytes()[:-5], "text": b"hello" * 50}[content]
        )
    with pytest.raises(
        HeadtailError, match=r"checkpoint.safetensors` cannot be read as a checkpoint: .*Delete it"
    ) as raised:
        checkpoint.load(path)
    if content.startswith("an"):
        assert "not written by headtail" in str(raised.value)


def test_weights_of_another_shape_are_refused_by_name():
    tensors = checkpoint.weights_of(nn.Linear(3, 2))
    with pytest.raises(
        HeadtailError, match=r"`model.weight` has shape \[2, 3\], but the model's \[2, 4\]"
    ):
        checkpoint.restore_weights(tensors, nn.Linear(4, 2))
    with pytest.raises(HeadtailError, match=r"`model.bias` has shape None"):
        checkpoint.restore_weights({"model.weight": torch.ones(2, 3)}, nn.Linear(3, 2))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        labels = Labels.zipf(9)
        self.weight = nn.Parameter(torch.ones(9, 2))
        self.sampler = Mixture([Queue(labels, 6), Uniform(labels, 2)])


def test_a_queue_inside_a_model_is_restored_with_its_fill_level():
    one = Table()
    other = Table()
    one.sampler.draw(torch.tensor([4, 5, 6, 7]))
    one.sampler.draw(torch.tensor([1, 2, 3]))
    checkpoint.restore_weights(checkpoint.weights_of(one), other)
    for _ in range(2):
        drawn = []
        for table in (one, other):
            torch.manual_seed(0)
            drawn.append(table.sampler.draw(torch.tensor([0, 8])).ids)
        assert len(drawn[0]) == 8
        assert torch.equal(*drawn)


def step(table: Table, optimiser: RowAdam, row: int) -> None:
    optimiser.zero_grad()
    nn.functional.embedding(torch.tensor([row]), table.weight, sparse=True).sum().backward()
    optimiser.step()


def test_pending_decay_is_saved_as_pending_and_owed_by_the_restored_table():
    one = Table()
    other = Table()
    optimiser, another = (
        RowAdam(table.parameters(), lr=0.1, weight_decay=0.5) for table in (one, other)
    )
    for row in (0, 1, 0):
        step(one, optimiser, row)
    tensors, facts = checkpoint.training_state(one, optimiser)
    assert torch.equal(one.weight[8], torch.ones(2)), "saving settles nothing"
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    checkpoint.restore_training_state(kept, facts, other, another)
    assert owed(other.weight) is not None
    for table, its in ((one, optimiser), (other, another)):
        step(table, its, 4)
        its.flush()
    assert torch.equal(one.weight, other.weight)
    assert other.weight[8, 0].item() == pytest.approx(0.95**4, rel=1e-6)


def test_restored_weights_owe_nothing_from_before():
    table = Table()
    optimiser = RowAdam(table.parameters(), lr=0.1, weight_decay=0.5)
    weights = {
        name: tensor.detach().clone() for name, tensor in checkpoint.weights_of(table).items()
    }
    step(table, optimiser, 0)
    checkpoint.restore_weights(weights, table)
    optimiser.flush()
    assert torch.equal(table.weight, torch.ones(9, 2))


def test_randomness_goes_on_where_it_was():
    state = checkpoint.random_state(torch.device("cpu"))
    first = torch.rand(4)
    checkpoint.restore_random_state(state)
    assert torch.equal(first, torch.rand(4))
