"""A checkpoint that is damaged, or that somebody else has made: refused in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.files.tensors import save_tensors
from headtail.training import checkpoint
from headtail.training.config import Run
from headtail.training.run_files import note_if_stopped
from headtail.training.trainer import Trainer

DATA = "synthetic:points=200,test=50,features=80,labels=20"
RUNS = {
    "adagrad": Run(scheme="queue(50):importance", dim=8, epochs=2, batch=32, weight_decay=0.01),
    "rowwise": Run(
        scheme="uniform:importance@4", dim=8, epochs=2, batch=32, optimiser="rowwise-adagrad"
    ),
    "adam": Run(scheme="block:importance@4", dim=8, epochs=2, batch=32, optimiser="adam"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, run in RUNS.items():
        Trainer(run, load(DATA), folder / name).fit()
    return {name: folder / name for name in RUNS}


def resumed(source: Path, folder: Path, change: Any, name: str = "adagrad") -> None:
    """Continue a run from a copy of its checkpoint with some change; its checksum is right."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / "checkpoint.safetensors"
    tensors, facts = checkpoint.load(path)
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}
    change(tensors, facts)
    save_tensors(path, tensors, facts)
    Trainer(RUNS[name], load(DATA), folder).fit()


def refused(source: Path, folder: Path, change: Any, name: str = "adagrad") -> str:
    with pytest.raises(HeadtailError) as raised:
        resumed(source, folder, change, name)
    sentence = str(raised.value)
    assert str(folder / "checkpoint.safetensors") in sentence
    assert sentence.endswith("Delete it to start that run again.")
    return sentence


@pytest.mark.parametrize("name", RUNS)
def test_an_unchanged_copy_is_resumed(runs, tmp_path, name):
    resumed(runs[name], tmp_path, lambda tensors, facts: None, name)


WRONG_STATES = {
    "epoch": [-1, 3, 1.5, "1", None, True, 10**12],
    "step": [-1, 10**9, "1"],
    "best_epoch": [-1, 3, []],
    "loss_sum": [float("nan"), "1", None, 10**400],
    "first_loss": [float("inf"), "1"],
    "best": [float("nan"), None],
    "finished": [1, "yes", None],
    "curve": [None, [1], [[1, "loss"]], [[1, 2, 3]], [["1", "loss", 0.5]]],
    "evil": [1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_STATES.items() for value in values]
)
def test_a_state_that_no_run_can_be_in_is_refused(runs, tmp_path, name, value):
    refused(runs["adagrad"], tmp_path, lambda _, facts: facts["state"].update({name: value}))


def test_a_state_that_is_no_object_is_refused(runs, tmp_path):
    assert "its `state` is list" in refused(
        runs["adagrad"], tmp_path, lambda _, facts: facts.update(state=[])
    )


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "way",
    [
        lambda x: x[:1] if x.dim() else x[None],
        lambda x: torch.tensor(1.0),
        lambda x: x.to(torch.complex64),
        lambda x: x[None],
    ],
    ids=["short", "scalar", "complex", "deeper"],
)
def test_every_tensor_has_the_shape_and_dtype_of_this_run(runs, tmp_path, name, way):
    tensors, _ = checkpoint.load(runs[name] / "checkpoint.safetensors")
    assert any(key.startswith("optimiser.") for key in tensors)
    for key in tensors:

        def change(tensors, facts, key=key):
            tensors[key] = way(tensors[key])

        refused(runs[name], tmp_path / key, change, name)


def test_state_of_one_number_per_row_does_not_pass_for_one_per_weight(runs, tmp_path):
    def change(tensors, facts):
        tensors["optimiser.head.weight.sum"] = tensors["optimiser.head.weight.sum"][:, :1].clone()

    assert "must have [20, 8]" in refused(runs["adagrad"], tmp_path, change)


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        {"head.weight.step": "1"},
        {"head.weight.step": -1},
        {"head.weight.evil": 1},
        {"nothing.step": 1},
        {"head.weight.log_decay": float("nan")},
        {"head.weight.log_decay": None},
    ],
)
def test_numbers_of_the_optimiser_that_make_no_sense_are_refused(runs, tmp_path, numbers):
    refused(runs["adam"], tmp_path, lambda _, facts: facts.update(optimiser=numbers), "adam")


@pytest.mark.parametrize("key", ["optimiser.nothing.sum", "owed.nothing", "evil", "model.more"])
def test_a_tensor_too_many_is_refused(runs, tmp_path, key):
    assert f"`{key}`" in refused(
        runs["adagrad"], tmp_path, lambda tensors, _: tensors.update({key: torch.zeros(2)})
    )


def test_a_random_state_that_is_none_is_refused(runs, tmp_path):
    assert "`random.cpu`" in refused(
        runs["adagrad"],
        tmp_path,
        lambda tensors, _: tensors.update({"random.cpu": torch.full((5056,), 255).byte()}),
    )


def test_weights_that_are_not_finite_are_refused(runs, tmp_path):
    def change(tensors, facts):
        tensors["model.head.weight"][0, 0] = float("nan")

    assert "1 of the 160 values of `model.head.weight`" in refused(
        runs["adagrad"], tmp_path, change
    )


def test_a_note_about_a_stopped_run_needs_to_know_how_far_it_came(tmp_path):
    save_tensors(tmp_path / "checkpoint.safetensors", {}, {"state": [], "run": {}})
    with pytest.raises(HeadtailError, match="is damaged"):
        note_if_stopped(tmp_path)
