"""Comparing schemes: a grid of runs over schemes and seeds, in one folder, that can be interrupted anywhere."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from headtail import environment
from headtail.build import parse, scheme
from headtail.config import Run, Training
from headtail.data.catalogue import recognise
from headtail.data.facts import facts_of, label_counts
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.evaluate import top_labels
from headtail.events import Events
from headtail.implicit import explain
from headtail.labels import Labels
from headtail.metrics import DEEPEST, Measure, measure, most_popular
from headtail.models import Model
from headtail.results import POPULAR, Comparison, Row, check_writable, read_rows, to_csv, write_text
from headtail.slices import Slices
from headtail.train import State, Trained, Trainer, Watch, load_model, split_validation, training_labels
from headtail.workers import Source, in_turn, side_by_side

ABOUT = "about.json"
SliceRule = Literal["mass", "count"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid and the folder it lives in."""

    run: Run
    folder: Path

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
        try:
            return json.loads((self.folder / ABOUT).read_text())
        except (OSError, ValueError):
            return {}


def cells(training: Training, schemes: Sequence[str], seeds: int, data: DataSet, folder: Path) -> list[Cell]:
    """The grid; a cell's folder is named after everything that decides its results, so that settings never mix."""
    runs = [Run(**asdict(training), scheme=name, seed=seed) for seed in range(seeds) for name in schemes]
    return [Cell(run, folder / "cells" / _folder_name(run, data)) for run in runs]


def run_cell(
    cell: Cell, data: DataSet, slices: Slices, *, device: str = "cpu", watch: Watch | None = None, stop: Any = None
) -> list[Row]:
    """Train and test one run, or read what is there already."""
    _check_same(cell, data)
    path = cell.folder / "results.csv"
    if cell.done:
        return read_rows(path) if cell.about.get("slices") == slices.rule else measured_again(cell, data, slices, device)
    write_text(cell.folder / "run.toml", cell.run.to_toml())
    write_text(cell.folder / ABOUT, json.dumps({"data": data.digest, "slices": slices.rule}))
    events = Events(cell.folder / "events")

    def both(state: State, steps: int, loss: float) -> None:
        events(state, steps, loss)
        if watch is not None:
            watch(state, steps, loss)

    try:
        trained = Trainer(cell.run, data, cell.folder, device=device, watch=both, stop=stop).fit()
    finally:
        events.close()
    found = measures_of(best_labels(trained.model, data), data, slices)
    rows = rows_of(cell.run, data, trained, found, cell.folder.name)
    write_text(path, to_csv(rows))
    # The model stays, its way there is done; so are files that a killed process left half written.
    for path in (cell.folder / "checkpoint.safetensors", *cell.folder.glob(".*.safetensors.*")):
        path.unlink(missing_ok=True)
    return rows


def measured_again(cell: Cell, data: DataSet, slices: Slices, device: str) -> list[Row]:
    """The rows of a finished run with its model measured by other slices; what is on disk stays as it is."""
    before, (model, *_) = read_rows(cell.folder / "results.csv"), load_model(cell.folder)
    found = measures_of(best_labels(model.to(device), data), data, slices)
    last = next(row for row in before if row.split == "test")
    return [*(row for row in before if row.split != "test"), *(replace(last, **one._asdict()) for one in found)]


def best_labels(model: Model, data: DataSet) -> Int[Tensor, "n k"]:
    """As many labels of each test point as metrics look at."""
    return top_labels(model, data.test, min(DEEPEST, data.test.num_labels))


def _check_same(cell: Cell, data: DataSet) -> None:
    """A folder keeps the run that was begun in it: another one is refused before anything is written."""
    if not any((cell.folder / name).exists() for name in ("results.csv", "checkpoint.safetensors", "model.safetensors")):
        return
    settings = cell.folder / "run.toml"
    before = asdict(Run.read(settings) if settings.exists() else cell.run)
    other = [f"`{name}`" for name, value in asdict(cell.run).items() if value != before[name]]
    if cell.about.get("data", data.digest) != data.digest:
        other.append("data")
    if other:
        raise HeadtailError(f"`{cell.folder}` holds a run with other {', '.join(other)}. Choose another folder, or delete it.")


@dataclass(frozen=True)
class CellWork:
    """`run_cell` as work for a process."""

    slices: SliceRule
    device: str

    def __call__(self, cell: Cell, data: DataSet, watch: Watch, stop: Any) -> list[Row]:
        """Do the cell."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what schemes warn of stands in their notes
            return run_cell(cell, data, data_slices(data, self.slices), device=self.device, watch=watch, stop=stop)


def compare(
    grid: Sequence[Cell],
    source: Source,
    folder: Path,
    *,
    slices: SliceRule = "mass",
    device: str = "cpu",
    workers: int = 1,
    command: str = "",
    watch: Callable[[Cell], Watch] | None = None,
    told: Callable[[Cell, str | None], None] | None = None,
    strict: bool = False,
) -> Comparison:
    """Run what is not there yet, and gather everything in the folder.

    Args:
        grid: the cells.
        source: gives the data set, in any process.
        folder: where results go; refused before any work if it takes no files.
        slices: head, torso and tail by share of the examples, or by count.
        device: "cpu" or "cuda".
        workers: processes that train at the same time; they share torch's threads evenly.
        command: what the user typed, kept with the results.
        watch: gives a cell its watcher.
        told: hears of each cell when it is over, with a sentence if it failed.
        strict: let a failing cell stop everything, for debugging.
    """
    check_writable(folder, "Choose another folder.")
    data, work, found = source(), CellWork(slices, device), {}
    watch = watch or (lambda _: lambda *_: None)
    todo = [cell for cell in grid if not cell.done]
    # The number of threads decides the last digits of a sum: it must not depend on how many cells are left to do.
    threads = max(1, torch.get_num_threads() // workers)
    if workers == 1 or len(todo) < 2:
        outcomes = in_turn(grid, data, work, watch, threads=threads)
    else:
        outcomes = side_by_side(grid, source, work, watch, workers=min(workers, len(todo)), threads=threads)
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
    rows = [*baseline_rows(data, by), *explain_rows(grid, data), *(row for cell in grid for row in found.get(cell, []))]
    return gather(folder, rows, failures, grid, data, by, device, command)


def gather(
    folder: Path,
    rows: list[Row],
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
    shown = "".join(
        f"{name} = {json.dumps(settings[name])}\n"
        for name in settings
        if name not in ("scheme", "seed") and settings[name] is not None
    )
    seeds = sorted({cell.run.seed for cell in grid})
    names = list(dict.fromkeys(cell.run.scheme for cell in grid))
    write_text(folder / "run.toml", f"{shown}schemes = {json.dumps(names)}\nseeds = {json.dumps(seeds)}\n")
    write_text(folder / "data.json", json.dumps(facts_of(data, slices), indent=1))
    write_text(folder / "schemes.json", json.dumps(explain_schemes(grid, data), indent=1))
    write_text(folder / "made_by.json", json.dumps(made_by, indent=1))
    write_text(folder / "failures.json", json.dumps(failures, indent=1))
    write_text(folder / "results.csv", to_csv(rows))
    return Comparison.read(folder)


def data_slices(data: DataSet, rule: SliceRule = "mass") -> Slices:
    """Head, torso and tail by the training pairs of each label."""
    counts = label_counts(data)
    return Slices.by_mass(counts) if rule == "mass" else Slices.by_count(counts)


def measures_of(top: Any, data: DataSet, slices: Slices) -> list[Measure]:
    """Every metric of top labels for the test points."""
    train, known = Labels.from_counts(label_counts(data)), recognise(data.train.num_features, data.train.num_labels)
    propensity = (0.55, 1.5) if known is None else known.propensity
    return measure(top, data.test.labels, train, slices, num_points=len(data.train), propensity=propensity)


def baseline_rows(data: DataSet, slices: Slices) -> list[Row]:
    """What recommending the most frequent labels to everybody reaches."""
    train = Labels.from_counts(label_counts(data))
    top = most_popular(train, len(data.test), min(DEEPEST, train.num_labels), data.test.seen)
    found = measures_of(top, data, slices)
    return [
        Row("", data.name, "test", "", POPULAR, None, 0, 0, 0, one.slice, one.metric, one.value, one.low, one.high) for one in found
    ]


def explain_rows(grid: Iterable[Cell], data: DataSet) -> list[Row]:
    """What is known of each scheme before training, as rows."""
    rows = []
    for name, about in explain_schemes(grid, data).items():
        where = ("", data.name, "explain", parse(name).loss, name, about["m"], 0, 0, 0, "full")
        rows += [Row(*where, metric, about[metric]) for metric in ("lean", "noise") if about.get(metric) is not None]
    return rows


def explain_schemes(grid: Iterable[Cell], data: DataSet) -> dict[str, dict[str, Any]]:
    """What each scheme of a grid optimises, where it leans and how noisy it is."""
    found: dict[str, dict[str, Any]] = {}
    for cell in grid:
        run = cell.run
        if run.scheme in found:
            continue
        labels = training_labels(data.train, split_validation(data, run.validation)[0], run.smoothing)
        size = min(run.batch, int(labels.total))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they warn of stands in the notes
                one = explain(scheme(run.scheme, labels, run.negatives), labels, batch_size=size)
        except HeadtailError as error:
            found[run.scheme] = {"m": None, "notes": [str(error)]}
            continue
        noise = max((x.noise for x in one.examples if x.noise is not None), default=None)
        found[run.scheme] = {
            "name": one.name,
            "equation": one.equation,
            "rho": one.rho,
            "leans": "tail" if parse(run.scheme).post_hoc else one.leans,
            "lean": one.lean,
            "noise": noise,
            "m": one.m,
            "notes": [*one.notes, *_batching_notes(run)],
        }
    return found


def _batching_notes(run: Run) -> list[str]:
    sampler = parse(run.scheme).sampler
    if run.batching == "points" and sampler is not None and sampler.name in ("within-batch", "queue", "mixture"):
        return ["Batches hold whole points, whose labels come together: q is then not the prior, and the loss not quite this one."]
    return []


def rows_of(run: Run, data: DataSet, trained: Trained, found: Iterable[Measure], name: str) -> list[Row]:
    """A run's learning curve and what was found on the test points, as rows."""
    state, steps = trained.state, trained.steps_per_epoch
    rows = []
    for epoch, metric, value in state.curve:
        split = "train" if metric == "loss" else "validation"
        rows.append(row_of(run, data, split, Measure(metric, "full", value, None, None), epoch, steps, name))
    return rows + [row_of(run, data, "test", one, state.best_epoch, steps, name) for one in found]


def row_of(run: Run, data: DataSet, split: str, one: Measure, epoch: int, steps: int, name: str = "") -> Row:
    """A measure as a row."""
    parsed = parse(run.scheme)
    m = None if parsed.sampler is None else float(parsed.num_negatives or run.negatives)
    where = (name, data.name, split, parsed.loss, run.scheme, m, run.seed, epoch, epoch * steps)
    return Row(*where, one.slice, one.metric, one.value, one.low, one.high)


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, HeadtailError) else f"{type(error).__name__}: {error}"


def _folder_name(run: Run, data: DataSet) -> str:
    everything = json.dumps([asdict(run), data.digest], sort_keys=True)
    short = hashlib.blake2b(everything.encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^a-z0-9.]+', '-', run.scheme.lower()).strip('-')}-seed{run.seed}-{short}"
