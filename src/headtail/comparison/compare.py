"""Comparing schemes: every run that is missing is trained, and all results are gathered.

A comparison can be interrupted anywhere; the same call again goes on where it was stopped.
"""

from __future__ import annotations

import datetime
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from headtail.comparison.cell import run_cell
from headtail.comparison.engines import EngineName, check_engine, engine_of
from headtail.comparison.explained import explain_schemes
from headtail.comparison.grid import Cell, cells, check_same_data
from headtail.comparison.results import Comparison, Row, first_answers, mean_times, read_classes
from headtail.comparison.rows import baseline_rows, explain_rows
from headtail.comparison.workers import DeviceWork, Outcome
from headtail.core.slices import Slices
from headtail.data.facts import facts_of
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.data.slices import SliceRule, data_slices
from headtail.device import environment
from headtail.device.choice import Device, choose_device
from headtail.errors import HeadtailError, Setting, check_count
from headtail.evaluation.measures import check_measurable
from headtail.files.checksums import DamagedWarning
from headtail.files.locks import held
from headtail.schemes import PAPER, check_batch
from headtail.training.build_model import check_encoder
from headtail.training.callbacks import Callback, Callbacks
from headtail.training.config import Training

DEFAULT_SCHEMES = (*PAPER, "softmax", "logit-adjusted")
DEFAULT_TRAINING = Training()


@dataclass(frozen=True)
class Execution:
    """How the runs of a comparison are carried out; nothing here changes their results.

    Attributes:
        workers: runs that train at the same time, on one GPU too; they share torch's threads
            evenly. More than one are processes that import the calling script, which then needs
            `if __name__ == "__main__":`. By default one; on a cluster, as many as it has cores, or
            GPUs.
        if_it_pays: start processes only for more work than their start takes, on a CPU. Ray is
            always used.
        strict: let the first failing run raise its error, for debugging.
        command: the command that was typed, kept with the results.
        callbacks: called with each cell for what follows its training, in this process even where
            the cell trains in another.
        finished: called with each cell when it is over, and with a sentence if it failed.
        note: called with anything else a user should know, in a sentence.
        engine: "processes" of this machine, or "ray": tasks on the cluster that `RAY_ADDRESS`
            names, or on one that is started on this machine, with one thread each.
    """

    workers: int | None = None
    if_it_pays: bool = False
    strict: bool = False
    command: str = ""
    callbacks: Callable[[Cell], Iterable[Callback]] = lambda _: ()
    finished: Callable[[Cell, str | None], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None
    engine: EngineName = "processes"

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers)
        check_engine(self.engine)
        if not callable(self.callbacks):
            raise HeadtailError(
                Setting("callbacks"),
                " must be a function from a cell to its callbacks, but got "
                f"{type(self.callbacks).__name__}. Write for example `callbacks=lambda cell: "
                "[PrintEpochs(cell.title)]`.",
            )


DEFAULT_EXECUTION = Execution()


def compare(
    data: DataSet | str | Path,
    schemes: Sequence[str] = DEFAULT_SCHEMES,
    *,
    seeds: int = 1,
    out: str | Path = "comparison",
    training: Training | Mapping[str, Training] = DEFAULT_TRAINING,
    slices: SliceRule = "auto",
    device: Device = "auto",
    execution: Execution = DEFAULT_EXECUTION,
) -> Comparison:
    """Train one model per scheme and seed, test each over all labels, and gather the results.

    Runs that are finished in the folder are not run again, so the same call goes on where it was
    stopped. What each scheme gains and loses in the head and the tail is in the rows of the result;
    `headtail.report.write_report` makes a page of it.

    Args:
        data: a data set from `headtail.load`, or what `load` reads.
        schemes: names of schemes; by default those of the paper.
        seeds: runs per scheme, with seeds 0, 1, …
        out: folder for results and models. One that cannot be written to, or that holds a
            comparison on other data, is refused before any work.
        training: how every model is trained; settings that are left open follow from the kind of
            data (`headtail.training.recipes`). Or how the models of each scheme are trained, for
            example as `headtail.tune` chose it.
        slices: head, torso and tail by share of the examples ("mass") or by "count"; "auto": by
            count for classification.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        execution: number of workers, and functions that follow the progress.

    >>> out = getfixture("tmp_path") / "comparison"
    >>> data = "synthetic:points=60,test=20,features=80,labels=12"
    >>> quick = Training(dim=4, epochs=1, batch=16, negatives=4)
    >>> found = compare(data, ["softmax", "within-batch:tail"], out=out, training=quick)
    >>> tail = ("test", "recall@10", "tail")
    >>> [row.scheme for row in found.rows if (row.split, row.metric, row.slice) == tail]
    ['most-popular', 'softmax', 'within-batch:tail']
    """
    names = tuple(dict.fromkeys(schemes))
    how = dict.fromkeys(names, training) if isinstance(training, Training) else training
    first = next(iter(how.values()), DEFAULT_TRAINING)
    check_schemes(names, first)
    check_count("seeds", seeds)
    device = choose_device(device)
    data = data if isinstance(data, DataSet) else load(data)
    data.check()
    for each in how.values():
        check_encoder(each, data.train)  # refused once, and not by every run
    grid = cells(training, names, seeds, data, out)
    check_batches(grid, first)
    return run_grid(grid, data, out, slices=slices, device=device, execution=execution)


def check_schemes(names: Sequence[str], training: Training, negatives: int | None = None) -> None:
    """Refuse names that are not schemes, and schemes that need larger batches, before any work.

    Args:
        names: the schemes.
        training: its batch, if it has one, is what within-batch negatives come from.
        negatives: m of schemes without `@m`, where a number was asked for and must be reached.
    """
    if not names:
        raise HeadtailError(
            Setting("schemes"),
            " needs at least one name, for example `within-batch:tail` or `softmax`.",
        )
    for name in names:
        check_batch(name, training.batch or sys.maxsize, negatives)


def check_batches(grid: Sequence[Cell], training: Training) -> None:
    """As `check_schemes`, once the data have decided the batch."""
    for cell in grid:
        check_batch(cell.run.scheme, cell.run.batch, training.negatives)


def run_grid(
    grid: Sequence[Cell],
    data: DataSet,
    folder: str | Path,
    *,
    slices: SliceRule = "auto",
    device: str = "cpu",
    execution: Execution = DEFAULT_EXECUTION,
) -> Comparison:
    """Run the cells that are not finished, and gather everything in the folder.

    Args:
        grid: the cells, from one or several calls of `cells`; their settings may differ.
        data: the data set.
        folder: where results go.
        slices: as for `compare`.
        device: "cpu" or "cuda".
        execution: as for `compare`.
    """
    folder = Path(folder)
    with held(folder):
        check_measurable(data)
        check_same_data(folder, data)
        for cell in grid:
            if note := cell.note_on_damage():
                execution.note(note)
        return _run_held(grid, data, folder, slices, device, execution)


def _run_held(
    grid: Sequence[Cell],
    data: DataSet,
    folder: Path,
    slices: SliceRule,
    device: str,
    execution: Execution,
) -> Comparison:
    """As `run_grid`, in a folder that is held."""
    by = data_slices(data, slices)
    explained = explain_schemes([cell.run for cell in grid], data, by)
    begun = Comparison(
        rows=[*baseline_rows(data, by), *explain_rows(explained, data)],
        data=facts_of(data, by),
        schemes=explained,
        settings=_settings(grid, data, by),
        made_by=_made_by(execution, device, folder),
        failures={},
    )
    begun.begin(folder, {cell.folder: cell.title for cell in grid})
    rows_of_cell: dict[Cell, list[Row]] = {}
    failures = {}
    with closing(outcomes(grid, data, CellWork(slices, device), execution)) as results:
        for cell, rows, error in results:
            if error is not None and execution.strict:
                raise error
            sentence = None if error is None else sentence_of(error)
            if sentence is None:
                rows_of_cell[cell] = rows
            else:
                failures[cell.title] = sentence
            execution.finished(cell, sentence)
    trained = [cell for cell in grid if cell in rows_of_cell]
    replace(
        begun,
        rows=[*begun.rows, *(row for cell in trained for row in rows_of_cell[cell])],
        made_by=_made_by(execution, device, folder)
        | {"times": mean_times(cell.folder for cell in trained)},
        failures={cell.title: failures[cell.title] for cell in grid if cell.title in failures},
        classes=[row for cell in trained for row in read_classes(cell.folder)],
        answers=first_answers(cell.folder for cell in trained),
    ).write(folder)
    return Comparison.read(folder)


@dataclass(frozen=True)
class CellWork:
    """`run_cell` as work for a process."""

    slices: SliceRule
    device: str

    def __call__(self, cell: Cell, data: DataSet, callback: Callback, stop: Any) -> list[Row]:
        """Do the cell."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what schemes warn of is in their notes
            warnings.simplefilter("always", DamagedWarning)
            slices = data_slices(data, self.slices)
            return run_cell(cell, data, slices, device=self.device, callbacks=callback, stop=stop)


def outcomes(
    grid: Sequence[Cell], data: DataSet, work: DeviceWork, execution: Execution
) -> Generator[Outcome, None, None]:
    """Cells that train, and then those that are measured on the models of others."""

    def follow(cell: Cell) -> Callback:
        return Callbacks(execution.callbacks(cell))

    training = [cell for cell in grid if cell.adjusts is None]
    adjusting = [cell for cell in grid if cell.adjusts is not None]
    engine = engine_of(
        execution.engine, execution.workers, execution.note, if_it_pays=execution.if_it_pays
    )
    with closing(engine):
        for part in (training, adjusting):
            yield from engine.run(part, data, work, follow)


def sentence_of(error: BaseException) -> str:
    """Why a cell failed, in one line.

    One that the command line may write with its options, if the error is one of headtail's.
    """
    if isinstance(error, HeadtailError):
        return error.sentence
    if isinstance(error, torch.AcceleratorError):
        first_line = str(error).partition("\n")[0].removeprefix("CUDA error: ")
        return f"The GPU reported a fault: {first_line}."
    return f"{type(error).__name__}: {error}"


def _settings(grid: Sequence[Cell], data: DataSet, slices: Slices) -> dict[str, Any]:
    """How the runs are trained, by scheme where they differ, and how the data were read."""
    of_scheme = {cell.run.scheme: asdict(cell.run) for cell in grid}
    settings: dict[str, Any] = {}
    for name in (field.name for field in fields(Training)):
        values = {scheme: run[name] for scheme, run in of_scheme.items()}
        first = next(iter(values.values()))
        settings[name] = first if all(value == first for value in values.values()) else values
    return settings | {
        "schemes": list(dict.fromkeys(cell.run.scheme for cell in grid)),
        "seeds": sorted({cell.run.seed for cell in grid}),
        "data": data.read_as | {"slices": slices.rule},
    }


def _made_by(execution: Execution, device: str, folder: Path) -> dict[str, Any]:
    return {
        "command": execution.command,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": environment.versions(),
        "machine": environment.machine(device),
        "workers": execution.workers or (1 if execution.engine == "processes" else None),
        "folder": str(folder),
    }
