"""Tuning: short runs over learning rate and epochs, judged on held-out training points."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headtail.comparison.compare import (
    DEFAULT_EXECUTION,
    DEFAULT_TRAINING,
    Execution,
    check_schemes,
    outcomes,
)
from headtail.comparison.grid import Cell, folder_name
from headtail.comparison.results import RESULTS, TRIES, Row, Try, read_rows
from headtail.comparison.rows import rows_of
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.device.choice import Device, choose_device
from headtail.errors import HeadtailError, Setting
from headtail.files.atomic import delete, write_text
from headtail.files.checksums import add_sum, write_sums
from headtail.files.locks import held
from headtail.files.records import to_csv
from headtail.schemes import parse
from headtail.training.callbacks import Callback
from headtail.training.config import Run, SettledRun, Training
from headtail.training.held_out import split_validation
from headtail.training.recipes import with_defaults
from headtail.training.trainer import Trainer

RATES = (0.25, 0.5, 1, 2, 4)
"""Learning rates that are tried, as multiples of the default."""
LENGTHS = (0.5, 1, 2)
"""Numbers of epochs likewise: the first with every rate, the others with the best of them."""


def tune(
    data: DataSet | str | Path,
    schemes: Sequence[str],
    *,
    out: str | Path = "comparison",
    training: Training = DEFAULT_TRAINING,
    device: Device = "auto",
    execution: Execution = DEFAULT_EXECUTION,
) -> dict[str, Training]:
    """Choose learning rate and epochs of each scheme on held-out training points.

    Every scheme gets the same tries: five rates around the default with half its epochs, then the
    best of them with as many and twice as many. The best on the held-out points is chosen; test
    points are not used. What `training` sets is kept. All tries are in `tries.csv`, and resumed.

    Args:
        data: a data set from `headtail.load`, or what `load` reads.
        schemes: names of schemes.
        out: folder for the tries, for example that of the comparison they are for.
        training: how every model is trained.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        execution: number of workers, and functions that follow the progress.

    Returns:
        How to train each scheme, for `compare`.

    >>> out = getfixture("tmp_path") / "comparison"
    >>> data = "synthetic:points=60,test=20,features=80,labels=12"
    >>> quick = Training(dim=4, epochs=1, batch=16, negatives=4, validation=0.2)
    >>> chosen = tune(data, ["softmax"], out=out, training=quick)
    >>> sorted(chosen), chosen["softmax"].epochs, chosen["softmax"].lr is None
    (['softmax'], 1, False)
    """
    names = tuple(dict.fromkeys(schemes))
    check_schemes(names, training)
    check_tunable(training)
    data = data if isinstance(data, DataSet) else load(data)
    check_held_out(data, training)
    folder = Path(out)
    # An adjusted scheme is trained as the scheme that it adjusts.
    trained = {name: parse(name).unadjusted for name in names}
    usual = {
        name: with_defaults(Run.of(training, name), data)
        for name in dict.fromkeys(trained.values())
    }
    with held(folder):
        tries: list[Try] = []
        for runs_of in (_rates, _lengths):
            runs = [
                run
                for name, default in usual.items()
                for run in runs_of(default, training, _of_scheme(tries, name))
            ]
            tries += _tried(runs, data, folder, choose_device(device), execution)
        best = {name: best_of(_of_scheme(tries, name)) for name in usual}
        _write(folder, tries, best)
    return {
        name: replace(training, lr=best[other].lr, epochs=best[other].epochs)
        for name, other in trained.items()
    }


def _of_scheme(tries: Sequence[Try], scheme: str) -> list[Try]:
    return [each for each in tries if each.scheme == scheme]


def _write(folder: Path, tries: Sequence[Try], best: dict[str, Try]) -> None:
    """Write the tries in the order of the schemes, with the chosen ones marked."""
    marked = [replace(each, chosen="yes") if each == best[each.scheme] else each for each in tries]
    marked.sort(key=lambda each: (list(best).index(each.scheme), each.epochs, each.lr))
    write_text(folder / TRIES, to_csv(marked, Try))
    add_sum(folder, TRIES)


def _tried(
    runs: Sequence[SettledRun], data: DataSet, folder: Path, device: str, execution: Execution
) -> list[Try]:
    """The tries with these settings, run or read."""
    grid = [Cell(run, folder / "tuning" / folder_name(run, data), part=_part(run)) for run in runs]
    tries = []
    with closing(outcomes(grid, data, TryWork(device), execution)) as results:
        for cell, rows, error in results:
            if error is not None:
                raise error
            tries.append(_try_of(cell.run, rows))
            execution.finished(cell, None)
    return tries


def check_held_out(data: DataSet, training: Training) -> None:
    """Refuse data that are too small to hold points out."""
    if split_validation(data, training.validation).held_out is None:
        raise HeadtailError(
            f"`{data.name}` has too few training points to hold some out, so nothing can be tuned. "
            "Choose ",
            Setting("lr"),
            " and ",
            Setting("epochs"),
            " yourself.",
        )


def check_tunable(training: Training) -> None:
    """Refuse to tune where nothing is open, or nothing is held out."""
    if training.lr is not None and training.epochs is not None:
        raise HeadtailError(
            "Nothing is left to tune: ",
            Setting("lr"),
            " and ",
            Setting("epochs"),
            " are given. Leave one of them out.",
        )
    if training.validation == 0:
        raise HeadtailError(
            "Tuning needs held-out training points, but ",
            Setting("validation"),
            " is 0. Write for example ",
            Setting("validation", 0.05),
            ".",
        )


def number_of_tries(training: Training, schemes: Sequence[str]) -> int:
    """How many runs `tune` makes."""
    each = (len(RATES) if training.lr is None else 1) + (
        len(LENGTHS) - 1 if training.epochs is None else 0
    )
    return each * len({parse(name).unadjusted for name in schemes})


def best_of(tries: Sequence[Try]) -> Try:
    """The best value; of equal ones the shorter, then the first."""
    best = min(tries, key=lambda one: (one.badness, one.epochs))
    if math.isinf(best.badness):
        raise HeadtailError(
            f"Every learning rate that was tried for `{best.scheme}` diverged. Choose a smaller ",
            Setting("lr"),
            f" than {min(one.lr for one in tries):g}, or ",
            Setting("clip", 1),
            ".",
        )
    return best


def _rates(usual: SettledRun, given: Training, _: Sequence[Try]) -> Iterator[SettledRun]:
    """Every rate, with few epochs."""
    epochs = _epochs(usual, LENGTHS[0]) if given.epochs is None else usual.epochs
    for factor in RATES if given.lr is None else (1,):
        yield replace(usual, lr=usual.lr * factor, epochs=epochs)


def _lengths(usual: SettledRun, given: Training, tries: Sequence[Try]) -> Iterator[SettledRun]:
    """The best rate so far, with more epochs."""
    for factor in LENGTHS[1:] if given.epochs is None else ():
        yield replace(usual, lr=best_of(tries).lr, epochs=_epochs(usual, factor))


def _epochs(usual: SettledRun, factor: float) -> int:
    return max(1, round(usual.epochs * factor))


def _part(run: SettledRun) -> str:
    return f"lr {run.lr:g}, {run.epochs} epochs"


def _try_of(run: SettledRun, rows: Sequence[Row]) -> Try:
    values = [(row.value, row.epoch) for row in rows if row.split == "validation"]
    lower = run.stop_on == "implicit-loss"
    value, epoch = (min if lower else max)(values, default=(math.nan, 0))
    return Try(run.scheme, run.lr, run.epochs, int(epoch), run.stop_on, value)


@dataclass(frozen=True)
class TryWork:
    """One try as work for a process: trained, and measured on held-out points alone."""

    device: str

    def __call__(self, cell: Cell, data: DataSet, callback: Callback, stop: Any) -> list[Row]:
        """The learning curve of a try; none if it diverged."""
        results = cell.folder / RESULTS
        if not cell.done:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    how = {"device": self.device, "callbacks": callback, "stop": stop}
                    trained = Trainer(cell.run, data, cell.folder, **how).fit()
                    rows = rows_of(cell.run, data, trained, [], cell.folder.name)
            except HeadtailError as error:
                if "diverged" not in str(error):
                    raise
                rows = []
            write_text(results, to_csv(rows, Row))
            write_sums(cell.folder, [RESULTS])
        for path in cell.folder.glob("*.safetensors"):
            delete(path)
        return read_rows(results)
