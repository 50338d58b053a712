"""One cell of a grid: trained and tested, or measured on the model of another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from headtail.comparison.grid import Cell, check_same_run
from headtail.comparison.kept_json import read_object
from headtail.comparison.results import (
    ABOUT,
    ANSWERS,
    CLASSES,
    RESULTS,
    TIMES,
    ClassError,
    Row,
    read_rows,
)
from headtail.comparison.rows import class_errors, dial_rows, rows_of
from headtail.comparison.stopwatch import Stopwatch
from headtail.core.slices import Slices
from headtail.data.facts import task_of
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.evaluation.dial import dial_of
from headtail.evaluation.examples import examples_of
from headtail.evaluation.measures import Measure, best_labels, measure_model, measures_of
from headtail.evaluation.ranks import ranks_of_model
from headtail.files.atomic import delete, write_text
from headtail.files.checksums import SUMS, damage_of, write_sums
from headtail.files.leftovers import remove, sweep
from headtail.files.locks import held
from headtail.files.records import to_csv
from headtail.files.tensors import save_tensors
from headtail.schemes import parse
from headtail.training import checkpoint
from headtail.training.callbacks import Callback, Callbacks
from headtail.training.config import to_toml
from headtail.training.engine import Engine
from headtail.training.run_files import CHECKPOINT_FILES, CHECKPOINTS
from headtail.training.saved_model import load_model
from headtail.training.tensorboard import TensorBoard
from headtail.training.trainer import Trainer

FILES = ("run.toml", ABOUT, ANSWERS, CLASSES, RESULTS)
"""The files of a cell that have a checksum beside them; its model has one inside."""


def run_cell(
    cell: Cell,
    data: DataSet,
    slices: Slices,
    *,
    device: str = "cpu",
    callbacks: Callback | Iterable[Callback] = (),
    stop: threading.Event | None = None,
    engine: Engine | None = None,
) -> list[Row]:
    """Train and test one run, or read the results that are there already.

    Args:
        cell: the run and its folder; a folder that holds another run is refused.
        data: the data set.
        slices: head, torso and tail; a finished run is measured again if they differ from before.
        device: "cpu" or "cuda".
        callbacks: what follows the training, beside TensorBoard's event files.
        stop: an event that asks the run to save and stop; without one, Ctrl-C does.
        engine: how to train, as far as that is not part of the experiment.
    """
    check_same_run(cell, data)
    done = cell.done
    if done:
        _tidy(cell.folder)
    if done and cell.about.get("slices") == slices.rule:
        return read_rows(cell.folder / RESULTS)
    if done:
        return _measured_again(cell, data, slices, device)
    with held(cell.folder):
        trainer = partial(
            Trainer, cell.run, data, cell.folder, device=device, stop=stop, engine=engine
        )
        return _run_held(cell, data, slices, device, Callbacks(callbacks), trainer)


def _run_held(
    cell: Cell,
    data: DataSet,
    slices: Slices,
    device: str,
    callbacks: Callbacks,
    trainer: Callable[..., Trainer],
) -> list[Row]:
    """As `run_cell`, for a cell that is not done, in a folder that is held."""
    for name in (SUMS, RESULTS):
        delete(cell.folder / name)
    settings = to_toml(asdict(cell.run), data.read_as | {"slices": slices.rule})
    write_text(cell.folder / "run.toml", settings)
    write_text(cell.folder / ABOUT, json.dumps({"data": data.digest, "slices": slices.rule}))
    if cell.adjusts:
        top, rows = _adjust(cell, data, slices, device)
    else:
        top, rows = _train(cell, data, slices, callbacks, trainer)
    examples = {cell.run.scheme: examples_of(top, data, slices)}
    write_text(cell.folder / ANSWERS, json.dumps(examples))
    if task_of(data) == "classification":
        write_text(cell.folder / CLASSES, to_csv(class_errors(cell.run, data, top), ClassError))
    write_text(cell.folder / RESULTS, to_csv(rows, Row))
    write_sums(cell.folder, FILES, [TIMES])  # the last: the cell is then done
    _tidy(cell.folder)
    return rows


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs, and what killed processes have left."""
    sweep(folder)
    for name in CHECKPOINT_FILES:
        delete(folder / name)
    remove(folder / CHECKPOINTS)


def _train(
    cell: Cell,
    data: DataSet,
    slices: Slices,
    callbacks: Callbacks,
    trainer: Callable[..., Trainer],
) -> tuple[Int[Tensor, "n k"], list[Row]]:
    """Train a cell; the best labels of its test points, and its rows."""
    stopwatch = Stopwatch()
    every = (stopwatch, TensorBoard(cell.folder / "events"), callbacks)
    trained = trainer(callbacks=every).fit(hold=False)
    if (times := stopwatch.times(trained.state, trained.steps_per_epoch)) is not None:
        write_text(cell.folder / TIMES, json.dumps({cell.run.scheme: times}))
    top = best_labels(trained.model, data)
    measures = measures_of(top, data, slices, ranks_of_model(trained.model, data.test))
    rows = rows_of(cell.run, data, trained, measures, cell.folder.name)
    return top, rows + dial_rows(rows[-1], dial_of(trained.model, data, slices, trained.lean()))


def _adjust(
    cell: Cell, data: DataSet, slices: Slices, device: str
) -> tuple[Int[Tensor, "n k"], list[Row]]:
    """As `_train`, with the weights and the learning curve of the cell that this one adjusts."""
    other = cell.adjusts
    assert other is not None, "such a cell adjusts another"
    unadjusted = parse(cell.run.scheme).unadjusted
    needs = f"`{cell.run.scheme}` answers with the model of `{unadjusted}`, but"
    if damage_of(other) is not None:
        raise HeadtailError(f"{needs} that run failed. Run the comparison again.")
    if not (other / "model.safetensors").exists():
        raise HeadtailError(
            f"{needs} `{other}` has lost it. Delete that folder and run the comparison again."
        )
    before = read_rows(other / RESULTS)
    tensors, facts = checkpoint.load(other / "model.safetensors")
    save_tensors(cell.folder / "model.safetensors", tensors, {**facts, "run": asdict(cell.run)})
    if (other / TIMES).exists():
        [times] = read_object(other / TIMES).values()
        write_text(cell.folder / TIMES, json.dumps({cell.run.scheme: times}))
    model = load_model(cell.folder)[0].to(device)
    top = best_labels(model, data)
    measures = measures_of(top, data, slices, ranks_of_model(model, data.test))
    renamed = [replace(row, run=cell.folder.name, scheme=cell.run.scheme) for row in before]
    return top, _with_test_measures(renamed, measures)


def _measured_again(cell: Cell, data: DataSet, slices: Slices, device: str) -> list[Row]:
    """The rows of a finished run with its model measured by other slices; its files stay as they
    are.
    """
    before = read_rows(cell.folder / RESULTS)
    model, *_ = load_model(cell.folder)
    model.to(device)
    rows = _with_test_measures(before, measure_model(model, data, slices))
    return rows + dial_rows(rows[-1], dial_of(model, data, slices))


def _with_test_measures(rows: list[Row], measures: Iterable[Measure]) -> list[Row]:
    """The learning curve of a run's rows, with other measures of its test points."""
    last = next(row for row in rows if row.split == "test")
    return [
        *(row for row in rows if row.split in ("train", "validation")),
        *(replace(last, **measure._asdict()) for measure in measures),
    ]
