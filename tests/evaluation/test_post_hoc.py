"""Answers adjusted afterwards: measured on the model of the plain run, as if they had been trained
for.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from headtail.cli.tables import results_table
from headtail.comparison import cell as cell_module
from headtail.comparison.compare import Execution, run_grid
from headtail.comparison.grid import cells
from headtail.comparison.results import CLASSES, ClassError, read_rows
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.files.records import read_csv
from headtail.training import checkpoint
from headtail.training.config import Training
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from tests.longtail import COUNTS, TEST, longtail, pictures

TRAINING = Training(dim=8, batch=32, epochs=3, lr=0.1, dropout=0.0, negatives=8, validation=0.1)
PLAIN = "softmax"
ADJUSTED = "softmax+post-hoc"
SCHEMES = (ADJUSTED, "uniform:importance", PLAIN, "uniform:importance+post-hoc")


@pytest.fixture
def trained(monkeypatch):
    runs = []

    class Spy(Trainer):
        def __init__(self, run, *rest, **options):
            runs.append(run.scheme)
            super().__init__(run, *rest, **options)

    monkeypatch.setattr(cell_module, "Trainer", Spy)
    return runs


def compared(
    folder: Path,
    schemes=SCHEMES,
    training: Training = TRAINING,
    data: DataSet | None = None,
    workers: int = 1,
):
    data = data or longtail()
    grid = cells(training, schemes, 2, data, folder)
    return grid, run_grid(grid, data, folder, execution=Execution(workers=workers))


def test_half_the_trainings_give_the_weights_and_rows_of_all_of_them(tmp_path, trained):
    grid, found = compared(tmp_path / "shared")
    assert sorted(trained) == sorted([PLAIN, "uniform:importance"] * 2)
    for cell in grid:
        alone = [
            cells(TRAINING, [cell.run.scheme], 2, longtail(), tmp_path / "alone")[cell.run.seed]
        ]
        run_grid(alone, longtail(), tmp_path / "alone")
        ours, theirs = (
            checkpoint.load(one.folder / "model.safetensors") for one in (cell, alone[0])
        )
        assert ours[1] == theirs[1], "facts, the scheme among them"
        assert all(torch.equal(tensor, theirs[0][name]) for name, tensor in ours[0].items())
        for name in ("results.csv", CLASSES, "run.toml", "about.json"):
            assert (cell.folder / name).read_bytes() == (alone[0].folder / name).read_bytes()
    assert len(trained) == 4 + 8, "alone, each is trained by itself"
    assert {row.scheme for row in found.rows if row.split == "test"} == {*SCHEMES, "most-popular"}


def test_adjusted_answers_move_to_the_tail_on_the_same_weights(tmp_path):
    grid, found = compared(tmp_path, schemes=(PLAIN, ADJUSTED))
    tail = {
        name: [
            row.value
            for row in found.rows
            if (row.split, row.scheme, row.metric, row.slice)
            == ("test", name, "balanced-error", "tail")
        ]
        for name in (PLAIN, ADJUSTED)
    }
    assert all(after < before for before, after in zip(tail[PLAIN], tail[ADJUSTED], strict=True))
    plain, adjusted = (load_model(cell.folder)[0] for cell in grid[:2])
    assert torch.equal(plain.head.weight, adjusted.head.weight)
    assert not torch.equal(
        plain.top(longtail().test.features, 3), adjusted.top(longtail().test.features, 3)
    )


def test_side_by_side_they_wait_for_the_model_they_answer_with(tmp_path, trained):
    _, turn = compared(tmp_path / "turn")
    grid, side = compared(tmp_path / "side", workers=2)
    assert side.rows == turn.rows
    assert side.classes == turn.classes
    assert len(trained) == 4, "in this process none but those in turn"
    assert all(cell.done for cell in grid)


def test_killed_between_its_files_such_a_run_is_measured_again_and_nothing_is_trained(
    tmp_path, trained
):
    grid, before = compared(tmp_path)
    trained.clear()
    adjusted = next(cell for cell in grid if cell.run.scheme == ADJUSTED)
    (adjusted.folder / "results.csv").unlink()
    (adjusted.folder / CLASSES).unlink()
    _, after = compared(tmp_path)
    assert trained == []
    assert after.rows == before.rows
    assert after.classes == before.classes


def test_where_held_out_answers_choose_the_epoch_each_is_trained_by_itself(tmp_path, trained):
    for stop_on, validation, runs in (("precision@1", 0.1, 4), ("precision@1", 0.0, 2)):
        trained.clear()
        training = Training(dim=8, batch=32, epochs=1, stop_on=stop_on, validation=validation)
        compared(tmp_path, schemes=(PLAIN, ADJUSTED), training=training)
        assert len(trained) == runs


def test_a_failed_run_and_a_lost_model_are_reported_with_a_way_out(tmp_path, monkeypatch):
    def fail(self):
        raise HeadtailError("The sky fell.")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", fail)
        _, found = compared(tmp_path, schemes=(PLAIN, ADJUSTED))
    assert found.failures[f"{ADJUSTED}, seed 0"] == (
        "`softmax+post-hoc` answers with the model of `softmax`, but that run failed. Run the "
        "comparison again."
    )
    grid, found = compared(tmp_path, schemes=(PLAIN,))
    assert not found.failures
    (grid[0].folder / "model.safetensors").unlink()
    _, found = compared(tmp_path, schemes=(PLAIN, ADJUSTED))
    assert found.failures.keys() == {f"{ADJUSTED}, seed 0"}
    assert (
        "has lost it. Delete that folder and run the comparison again."
        in found.failures[f"{ADJUSTED}, seed 0"]
    )


def test_every_class_has_its_error_and_their_mean_is_the_balanced_error(tmp_path):
    grid, found = compared(tmp_path, schemes=(PLAIN, "uniform:tail"))
    assert found.data["task"] == "classification"
    assert "at least 100" in found.data["slices"]["rule"]
    assert found.data["slices"]["sizes"] == {"head": 2, "torso": 3, "tail": 3}
    assert len(found.classes) == 2 * 2 * len(COUNTS)
    for cell in grid:
        own = [
            row
            for row in found.classes
            if (row.scheme, row.seed) == (cell.run.scheme, cell.run.seed)
        ]
        assert own == read_csv(cell.folder / CLASSES, ClassError)
        assert [row.label for row in own] == list(range(len(COUNTS)))
        assert tuple(row.train for row in own) == COUNTS
        assert {row.test for row in own} == {TEST}
        errors = {
            row.slice: row.value
            for row in read_rows(cell.folder / "results.csv")
            if row.metric == "balanced-error" and row.split == "test"
        }
        assert sum(row.error for row in own) / len(own) == pytest.approx(errors["full"])
        assert sum(row.error for row in own[5:]) / 3 == pytest.approx(errors["tail"])
        weighted = sum(row.train * row.error for row in own) / sum(COUNTS)
        rows = read_rows(cell.folder / "results.csv")
        assert weighted == pytest.approx(
            next(row.value for row in rows if row.metric == "class-weighted-error")
        )
    shown = Console(width=200, file=io.StringIO())
    shown.print(results_table(found, 200))
    text = shown.file.getvalue()
    assert "Error by slice" in text
    assert text.index("Tail") < text.index("Balanced") < text.index("Prior-weighted")
    tail = results_table(found, 200).columns[4]
    values = {str(cell): cell.style for cell in tail.cells}
    assert [value for value, style in values.items() if style == "bold"] == [
        min(values, key=lambda text: float(text.split()[0]))
    ]
    assert {row.m for row in found.classes if row.scheme == PLAIN} == {None}
    assert {row.m for row in found.classes if row.scheme == "uniform:tail"} == {8}


def test_a_network_for_images_is_shared_with_its_statistics(tmp_path):
    pytest.importorskip("headtail.encoders.resnet", reason="there is no network for images")
    network = {"encoder": "resnet20", "optimiser": "sgd", "momentum": 0.9}
    training = Training(
        batch=64, negatives=8, epochs=1, lr=0.05, dropout=0.0, validation=0.0, **network
    )
    grid = cells(
        training, (PLAIN, ADJUSTED, "within-batch:tail"), 1, pictures(), tmp_path / "shared"
    )
    found = run_grid(grid, pictures(), tmp_path / "shared")
    assert found.failures == {}
    assert len(found.classes) == 3 * len(COUNTS)
    alone = cells(training, (ADJUSTED,), 1, pictures(), tmp_path / "alone")
    run_grid(alone, pictures(), tmp_path / "alone")
    ours, theirs = (
        checkpoint.load(cell.folder / "model.safetensors")[0] for cell in (grid[1], alone[0])
    )
    assert any("running_mean" in name for name in ours)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert (grid[1].folder / "results.csv").read_bytes() == (
        alone[0].folder / "results.csv"
    ).read_bytes()
