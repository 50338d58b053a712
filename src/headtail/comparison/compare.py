"""Comparing schemes: a grid of runs over schemes and seeds, in one folder, that can be interrupted
anywhere.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.comparison.explained import explain_rows, explain_schemes, negatives_of
from headtail.comparison.results import (
    CLASSES,
    POPULAR,
    ClassError,
    Comparison,
    Row,
    check_writable,
    read_rows,
    to_csv,
    write_text,
)
from headtail.comparison.workers import Outcome, Source, Work, in_turn, side_by_side
from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.data.catalogue import recognise
from headtail.data.facts import facts_of, label_counts, task_of
from headtail.data.load import told_apart
from headtail.data.points import DataSet
from headtail.device import environment
from headtail.device.shared_gpu import shared_gpu
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.evaluation.topk import top_labels
from headtail.metrics import DEEPEST, Measure, label_errors, measure, most_popular
from headtail.schemes import parse
from headtail.training import checkpoint
from headtail.training.config import Run, Training, data_of, to_toml
from headtail.training.events import Events
from headtail.training.saved_model import load_model
from headtail.training.state import State, Watch
from headtail.training.trainer import Trained, Trainer

ABOUT = "about.json"
SliceRule = Literal["auto", "mass", "count"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid and the folder it lives in.

    Attributes:
        run: its settings.
        folder: where its files are.
        adjusts: folder of the run that trains the same weights, where this one only answers in
            another way; or None.
    """

    run: Run
    folder: Path
    adjusts: Path | None = None

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.run.scheme}, seed {self.run.seed}"

    @property
    def done(self) -> bool:
        """Whether its results are there."""
        return (self.folder / "results.csv").exists()

    @property
    def about(self) -> dict[str, str]:
        """On which data it was begun, by which slices it is measured; empty where nobody knows."""
        return _noted(self.folder / ABOUT)


def cells(
    training: Training, schemes: Sequence[str], seeds: int, data: DataSet, folder: str | Path
) -> list[Cell]:
    """The grid; a cell's folder is named after everything that decides its results, so that
    settings never mix.

    `X+post-hoc` is trained as `X` is: where both are in the grid, it is measured on the model of
    `X`.
    """
    runs = [
        Run(**asdict(training), scheme=name, seed=seed) for seed in range(seeds) for name in schemes
    ]
    home: dict[Run | None, Path] = {
        run: Path(folder) / "cells" / _folder_name(run, data) for run in runs
    }
    return [Cell(run, home[run], home.get(_unadjusted(run))) for run in runs]


def _unadjusted(run: Run) -> Run | None:
    """The run that ends with the same weights though it does not adjust its answers.

    Held-out points that are answered would see the adjustment, and choose another epoch; a loss
    does not.
    """
    if not parse(run.scheme).post_hoc or (run.validation and run.stop_on != "implicit-loss"):
        return None
    return replace(run, scheme=run.scheme.strip()[: -len("+post-hoc")])


def run_cell(
    cell: Cell,
    data: DataSet,
    slices: Slices,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
    stop: Any = None,
) -> list[Row]:
    """Train and test one run, or read what is there already."""
    _check_same(cell, data)
    path = cell.folder / "results.csv"
    if cell.done:
        return (
            read_rows(path)
            if cell.about.get("slices") == slices.rule
            else measured_again(cell, data, slices, device)
        )
    write_text(
        cell.folder / "run.toml", to_toml(asdict(cell.run), data.read_as | {"slices": slices.rule})
    )
    write_text(cell.folder / ABOUT, json.dumps({"data": data.digest, "slices": slices.rule}))
    top, rows = (
        _adjust(cell, data, slices, device)
        if cell.adjusts
        else _train(cell, data, slices, device, watch, stop)
    )
    if task_of(data) == "classification":
        write_text(cell.folder / CLASSES, to_csv(class_errors(cell.run, data, top), ClassError))
    write_text(path, to_csv(rows))  # the last: a cell with results is done
    # The model stays, its way there is done; so are files that a killed process left half written.
    for path in (cell.folder / "checkpoint.safetensors", *cell.folder.glob(".*.safetensors.*")):
        path.unlink(missing_ok=True)
    return rows


def _train(
    cell: Cell, data: DataSet, slices: Slices, device: str, watch: Watch | None, stop: Any
) -> tuple[Int[Tensor, "n k"], list[Row]]:
    """A cell's training, the best labels of its test points, and its rows."""
    events = Events(cell.folder / "events")

    def both(state: State, steps: int, loss: float | None) -> None:
        events(state, steps, loss)
        if watch is not None:
            watch(state, steps, loss)

    try:
        trained = Trainer(cell.run, data, cell.folder, device=device, watch=both, stop=stop).fit()
    finally:
        events.close()
    top = best_labels(trained.model, data)
    return top, rows_of(cell.run, data, trained, measures_of(top, data, slices), cell.folder.name)


def _adjust(
    cell: Cell, data: DataSet, slices: Slices, device: str
) -> tuple[Int[Tensor, "n k"], list[Row]]:
    """As `_train`, with the weights and the learning curve of another cell, which differ in
    nothing.
    """
    other = cell.adjusts
    assert other is not None, "such a cell adjusts another"
    told = (
        f"`{cell.run.scheme}` answers with the model of "
        f"`{cell.run.scheme.strip()[: -len('+post-hoc')]}`, but"
    )
    if not (other / "results.csv").exists():
        raise HeadtailError(f"{told} that run failed. Run the same command again.")
    if not (other / "model.safetensors").exists():
        raise HeadtailError(
            f"{told} `{other}` has lost it. Delete that folder and run the same command again."
        )
    before = read_rows(other / "results.csv")
    tensors, facts = checkpoint.load(other / "model.safetensors")
    checkpoint.save(cell.folder / "model.safetensors", tensors, {**facts, "run": asdict(cell.run)})
    top = best_labels(load_model(cell.folder)[0].to(device), data)
    mine = [replace(row, run=cell.folder.name, scheme=cell.run.scheme) for row in before]
    return top, _tested_anew(mine, measures_of(top, data, slices))


def measured_again(cell: Cell, data: DataSet, slices: Slices, device: str) -> list[Row]:
    """The rows of a finished run with its model measured by other slices; what is on disk stays as
    it is.
    """
    before = read_rows(cell.folder / "results.csv")
    model, *_ = load_model(cell.folder)
    return _tested_anew(before, measures_of(best_labels(model.to(device), data), data, slices))


def _tested_anew(rows: list[Row], found: Iterable[Measure]) -> list[Row]:
    """A run's rows with other measures of its test points."""
    last = next(row for row in rows if row.split == "test")
    return [
        *(row for row in rows if row.split != "test"),
        *(replace(last, **one._asdict()) for one in found),
    ]


def class_errors(run: Run, data: DataSet, top: Int[Tensor, "n k"]) -> list[ClassError]:
    """The error of each label, given the best labels of the test points."""
    counts = label_counts(data).tolist()
    names = map(str, data.label_names or [""] * data.train.num_labels)
    found = label_errors(top, data.test.labels, data.train.num_labels)
    each = zip(names, counts, found.points.tolist(), found.error.tolist(), strict=True)
    return [
        ClassError(data.name, run.scheme, negatives_of(run), run.seed, label, *one)
        for label, one in enumerate(each)
    ]


def best_labels(model: Model, data: DataSet) -> Int[Tensor, "n k"]:
    """As many labels of each test point as metrics look at."""
    return top_labels(model, data.test, min(DEEPEST, data.test.num_labels))


def check_measurable(data: DataSet) -> None:
    """Refuse data on which nothing can be measured."""
    if not data.test.num_pairs:
        raise HeadtailError(
            f"`{data.name}` has no test point with a label that training knows, so nothing can be "
            "measured. Name others "
            "(`--test`); a trained model answers these (`headtail predict`)."
        )


def _check_same(cell: Cell, data: DataSet) -> None:
    """A folder keeps the run that was begun in it: another one is refused before anything is
    written.
    """
    if not any(
        (cell.folder / name).exists()
        for name in ("results.csv", "checkpoint.safetensors", "model.safetensors")
    ):
        return
    if (cell.folder / "data.json").exists():
        raise HeadtailError(f"`{cell.folder}` holds a comparison. Choose another folder for a run.")
    settings = cell.folder / "run.toml"
    before = asdict(Run.read(settings) if settings.exists() else cell.run)
    other = [f"`{name}`" for name, value in asdict(cell.run).items() if value != before[name]]
    if cell.about.get("data", data.digest) != data.digest:
        other.append("data")
    if other:
        raise HeadtailError(
            f"`{cell.folder}` holds a run with other {', '.join(other)}. Choose another folder, or "
            "delete it."
        )


def check_same_data(folder: Path, data: DataSet) -> None:
    """A folder's tables tell of one data set: another, or a single run's folder, is refused before
    anything is written.
    """
    if (folder / ABOUT).exists():
        raise HeadtailError(
            f"`{folder}` holds a run of `headtail train`. Choose another folder with `--out`."
        )
    tables = _noted(folder / "data.json")
    begun = {
        path.parent: _noted(path).get("data") for path in sorted(folder.glob(f"cells/*/{ABOUT}"))
    }
    held = {folder: tables["digest"]} if "digest" in tables else begun
    if not held or data.digest in held.values():
        return
    before = {"path": tables.get("name", "other data")} | data_of(next(iter(held)) / "run.toml")
    then, now = told_apart(before, {"path": data.name} | data.read_as)
    what = f"now the data are {now}" if then != now else "their content has changed since"
    raise HeadtailError(
        f"`{folder}` holds a comparison on {then}, but {what}. Choose another folder with `--out`, "
        "or delete it."
    )


def _noted(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class CellWork:
    """`run_cell` as work for a process."""

    slices: SliceRule
    device: str

    def __call__(self, cell: Cell, data: DataSet, watch: Watch, stop: Any) -> list[Row]:
        """Do the cell."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what schemes warn of stands in their notes
            return run_cell(
                cell,
                data,
                data_slices(data, self.slices),
                device=self.device,
                watch=watch,
                stop=stop,
            )


def compare(
    grid: Sequence[Cell],
    source: Source,
    folder: str | Path,
    *,
    slices: SliceRule = "auto",
    device: str = "cpu",
    workers: int = 1,
    command: str = "",
    watch: Callable[[Cell], Watch] | None = None,
    told: Callable[[Cell, str | None], None] | None = None,
    say: Callable[[str], None] | None = None,
    strict: bool = False,
) -> Comparison:
    """Run what is not there yet, and gather everything in the folder.

    Args:
        grid: the cells.
        source: gives the data set, in any process.
        folder: where results go; refused before any work if it takes no files, or holds a
            comparison on other data.
        slices: head, torso and tail by share of the examples, or by count; auto: by count for
            classification.
        device: "cpu" or "cuda".
        workers: processes that train at the same time, on one GPU too; they share torch's threads
            evenly.
        command: what the user typed, kept with the results.
        watch: gives a cell its watcher.
        told: hears of each cell when it is over, with a sentence if it failed.
        say: hears what else a user should know, in a sentence.
        strict: let a failing cell stop everything, for debugging.
    """
    folder = Path(folder)
    check_writable(folder, "Choose another folder.")
    data = source()
    work = CellWork(slices, device)
    found = {}
    check_measurable(data)
    check_same_data(folder, data)
    watch = watch or (lambda _: lambda *_: None)
    outcomes = _outcomes(
        grid, source, data, work, watch, workers, device == "cuda", say or (lambda _: None)
    )
    failures = {}
    with closing(outcomes):
        for cell, rows, error in outcomes:
            if error is not None and strict:
                raise error
            sentence = None if error is None else _sentence(error)
            if sentence is None:
                found[cell] = rows
            else:
                failures[cell.title] = sentence
            if told is not None:
                told(cell, sentence)
    by = data_slices(data, slices)
    runs = [cell.run for cell in grid]
    rows = [
        *baseline_rows(data, by),
        *explain_rows(runs, data),
        *(row for cell in grid for row in found.get(cell, [])),
    ]
    homes = [cell.folder / CLASSES for cell in grid if cell in found]
    classes = [row for path in homes if path.exists() for row in read_rows(path, ClassError)]
    return gather(folder, rows, classes, failures, grid, data, by, device, command)


def _outcomes(
    grid: Sequence[Cell],
    source: Source,
    data: DataSet,
    work: Work,
    watch: Callable[[Cell], Watch],
    workers: int,
    gpu: bool,
    say: Callable[[str], None],
) -> Generator[Outcome, None, None]:
    """Cells that train, in turn or side by side; then, in turn, those that are measured on the
    models of others.
    """
    training, adjusting = (
        [cell for cell in grid if (cell.adjusts is not None) == after] for after in (False, True)
    )
    todo = sum(not cell.done for cell in training)
    # The number of threads decides the last digits of a sum: it must not depend on how many cells
    # are left to do.
    threads = max(1, torch.get_num_threads() // workers)
    if workers == 1 or todo < 2:
        yield from in_turn(training, data, work, watch, threads=threads)
    else:
        with shared_gpu(say) if gpu else nullcontext():
            yield from side_by_side(
                training, source, work, watch, workers=min(workers, todo), threads=threads
            )
    yield from in_turn(adjusting, data, work, watch, threads=threads)


def gather(
    folder: Path,
    rows: list[Row],
    classes: list[ClassError],
    failures: dict[str, str],
    grid: Sequence[Cell],
    data: DataSet,
    slices: Slices,
    device: str,
    command: str,
) -> Comparison:
    """Write the comparison's files."""
    made_by = {
        "command": command,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": environment.versions(),
        "machine": environment.machine(device),
    }
    settings = asdict(grid[0].run)
    shown = {name: value for name, value in settings.items() if name not in ("scheme", "seed")}
    seeds = sorted({cell.run.seed for cell in grid})
    names = list(dict.fromkeys(cell.run.scheme for cell in grid))
    read = data.read_as | {"slices": slices.rule}
    write_text(folder / "run.toml", to_toml(shown | {"schemes": names, "seeds": seeds}, read))
    write_text(folder / "data.json", json.dumps(facts_of(data, slices), indent=1))
    write_text(
        folder / "schemes.json",
        json.dumps(explain_schemes([cell.run for cell in grid], data), indent=1),
    )
    write_text(folder / "made_by.json", json.dumps(made_by, indent=1))
    write_text(folder / "failures.json", json.dumps(failures, indent=1))
    if classes:
        write_text(folder / CLASSES, to_csv(classes, ClassError))
    else:  # what stood there is of other runs
        (folder / CLASSES).unlink(missing_ok=True)
    write_text(folder / "results.csv", to_csv(rows))
    return Comparison.read(folder)


def data_slices(data: DataSet, rule: SliceRule = "auto") -> Slices:
    """Head, torso and tail by the training pairs of each label: by count for classification, unless
    told otherwise.
    """
    counts = label_counts(data)
    by_count = task_of(data) == "classification" if rule == "auto" else rule == "count"
    return Slices.by_count(counts) if by_count else Slices.by_mass(counts)


def measures_of(top: Any, data: DataSet, slices: Slices) -> list[Measure]:
    """Every metric of top labels for the test points."""
    train = Labels.from_counts(label_counts(data))
    known = recognise(data.train.num_features, data.train.num_labels)
    propensity = (0.55, 1.5) if known is None else known.propensity
    return measure(
        top, data.test.labels, train, slices, num_points=len(data.train), propensity=propensity
    )


def baseline_rows(data: DataSet, slices: Slices) -> list[Row]:
    """What recommending the most frequent labels to everybody reaches."""
    train = Labels.from_counts(label_counts(data))
    top = most_popular(train, len(data.test), min(DEEPEST, train.num_labels), data.test.seen)
    found = measures_of(top, data, slices)
    return [
        Row(
            "",
            data.name,
            "test",
            "",
            POPULAR,
            None,
            0,
            0,
            0,
            one.slice,
            one.metric,
            one.value,
            one.low,
            one.high,
        )
        for one in found
    ]


def rows_of(
    run: Run, data: DataSet, trained: Trained, found: Iterable[Measure], name: str
) -> list[Row]:
    """A run's learning curve and what was found on the test points, as rows."""
    state = trained.state
    steps = trained.steps_per_epoch
    rows = []
    for epoch, metric, value in state.curve:
        split = "train" if metric == "loss" else "validation"
        rows.append(
            row_of(run, data, split, Measure(metric, "full", value, None, None), epoch, steps, name)
        )
    return rows + [row_of(run, data, "test", one, state.best_epoch, steps, name) for one in found]


def row_of(
    run: Run, data: DataSet, split: str, one: Measure, epoch: int, steps: int, name: str = ""
) -> Row:
    """A measure as a row."""
    where = (
        name,
        data.name,
        split,
        parse(run.scheme).loss,
        run.scheme,
        negatives_of(run),
        run.seed,
        epoch,
        epoch * steps,
    )
    return Row(*where, one.slice, one.metric, one.value, one.low, one.high)


def _sentence(error: BaseException) -> str:
    if isinstance(error, torch.AcceleratorError):
        return (
            "The GPU reported a fault: "
            f"{str(error).partition(chr(10))[0].removeprefix('CUDA error: ')}."
        )
    return str(error) if isinstance(error, HeadtailError) else f"{type(error).__name__}: {error}"


def _folder_name(run: Run, data: DataSet) -> str:
    everything = json.dumps([asdict(run), data.digest], sort_keys=True)
    short = hashlib.blake2b(everything.encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^a-z0-9.]+', '-', run.scheme.lower()).strip('-')}-seed{run.seed}-{short}"
