"""Sweeps over learning rate, epochs and negatives: do the default settings train well?

    python experiments/defaults.py --data DATA --out experiments/results/defaults/runs.csv

Delicious, Diginetica, Nowplaying, Beauty, Gowalla and generated data; within-batch importance and
tail weights and the full softmax; five learning rates (Adagrad, linear decay), then other numbers
of epochs and of negatives. Every run keeps the epoch with the lowest implicit loss, over all
labels, on held-out training points; Recall@10 is measured on these points to choose, and on the
test points to report.

One line per run, written when it is over. Runs with a line in --out, or in another CSV file of
`experiments/results/defaults`, are not run again. The cheapest of each round come first, and
--budget stops in time. `defaults_tables.py` turns the lines into the tables of docs/defaults.md.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from study_tables import read_table, write_table

from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.data.facts import label_counts
from headtail.data.load import load
from headtail.data.points import DataSet, Points
from headtail.data.slices import data_slices
from headtail.device.shared_gpu import shared_gpu
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.evaluation.topk import top_labels
from headtail.metrics import most_popular
from headtail.schemes import parse
from headtail.training.config import Run
from headtail.training.held_out import split_validation
from headtail.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "defaults"
SCHEMES = ("within-batch:importance", "within-batch:tail", "softmax")
SLICES = ("full", "head", "torso", "tail")
KEY = ("dataset", "scheme", "lr", "epochs", "batch", "negatives", "dropout", "seed")
"""The columns that identify a run."""
VALIDATION = 0.1
"""Share of the training points that are held out, at most 2,000 of them."""


@dataclass(frozen=True)
class Sweep:
    """One data set: which settings are tried on it.

    Attributes:
        data: a folder in --data, or generated data.
        batch: pairs in a batch.
        negatives: m of sampled schemes; the first is swept over all rates before the others.
        epochs: lengths of a run, likewise.
        rates: learning rates.
        round: when it is run; later ones can be left out.
        wait: how many rounds later the softmax, which takes most of the time, is run.
    """

    data: str
    batch: int
    negatives: tuple[int, ...]
    epochs: tuple[int, ...]
    rates: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2)
    round: int = 0
    wait: int = 0


FINE = (0.02, 0.03, 0.05)
"""Rates around the best of the first rounds."""
HIGHER = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Rates for fewer steps per row: long tails of items, and a row per user."""


SWEEPS = (
    Sweep("delicious", 256, (64, 256), (10, 20, 40)),
    Sweep("beauty", 1024, (256, 1024), (10, 20, 5), HIGHER),
    Sweep("gowalla", 1024, (256, 1024), (20, 40, 10), HIGHER),
    Sweep("diginetica", 1024, (256, 1024), (10, 20, 5)),
    Sweep("nowplaying", 1024, (256, 1024), (10, 20, 5)),
    Sweep("synthetic:wikilshtc-325k,scale=0.1", 1024, (256, 1024), (10, 20, 5)),
    Sweep("beauty", 256, (256,), (10,), HIGHER, round=1),
    Sweep("gowalla", 256, (256,), (20,), HIGHER, round=1),
    Sweep("diginetica", 256, (256,), (10,), round=2),
    Sweep("diginetica", 1024, (1024,), (20,), FINE, round=4, wait=1),
    Sweep("beauty", 1024, (1024,), (20,), FINE, round=4, wait=1),
    Sweep("gowalla", 1024, (1024,), (30,), FINE, round=4, wait=1),
    Sweep("nowplaying", 1024, (1024,), (20,), FINE, round=4, wait=1),
    Sweep("synthetic:wikilshtc-325k,scale=0.1", 1024, (1024,), (20,), FINE, round=4, wait=1),
    Sweep("delicious", 256, (256,), (20,), FINE, round=4, wait=1),
)


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    run: Run
    round: int

    @property
    def key(self) -> tuple[str, ...]:
        """As in the columns `KEY` of its line."""
        return tuple(str(self.line()[name]) for name in KEY)

    def line(self) -> dict[str, Any]:
        """Its settings."""
        run = self.run
        sampled = parse(run.scheme).sampler is not None
        return {
            "dataset": self.data,
            "scheme": run.scheme,
            "lr": f"{run.lr:g}",
            "epochs": run.epochs,
            "batch": run.batch,
            "negatives": run.negatives if sampled else "",
            "dropout": f"{run.dropout:g}",
            "seed": run.seed,
        }


def tasks_of(sweep: Sweep) -> Iterator[Task]:
    """All runs on one data set: first the rates, then the other epochs and negatives."""
    for scheme in SCHEMES:
        sampled = parse(scheme).sampler is not None
        for i, negatives in enumerate(sweep.negatives if sampled else sweep.negatives[:1]):
            for j, epochs in enumerate(sweep.epochs):
                for rate in sweep.rates:
                    run = Run(
                        scheme=scheme,
                        lr=rate,
                        epochs=epochs,
                        batch=sweep.batch,
                        negatives=negatives,
                        dropout=0.5,
                        optimiser="adagrad",
                        schedule="linear",
                        validation=VALIDATION,
                        patience=3,
                        dim=512,
                    )
                    late = sweep.round + i + j + (0 if sampled else sweep.wait + (j > 0))
                    yield Task(sweep.data, run, late)


def cost(task: Task, data: DataSet) -> float:
    """Roughly proportional to the time of a run."""
    sampled = parse(task.run.scheme).sampler is not None
    width = 2_000 + 4 * task.run.negatives if sampled else data.train.num_labels
    return task.run.epochs * data.train.num_pairs * width


@cache
def read(data: str, root: Path) -> DataSet:
    """A data set, read once per process."""
    return load(data if data.startswith("synthetic") else root / data)


_STOP: list[Any] = []


def _begin(stop: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    _STOP.append(stop)


def perform(task: Task, root: Path, device: str) -> dict[str, Any]:
    """Train one run; its line."""
    begun = time.monotonic()
    data = read(task.data, root)
    line = task.line()
    try:
        trained = Trainer(task.run, data, device=device, stop=_STOP[0]).fit()
    except HeadtailError:  # the rate is too high
        return line | {"best_epoch": 0, "implicit_loss": math.inf}
    seconds = time.monotonic() - begun
    curve = [value for _, metric, value in trained.state.curve if metric == "implicit-loss"]
    held_out = split_validation(data, VALIDATION).held_out
    assert held_out is not None, "every data set of the sweep has enough points"
    slices = data_slices(data)
    return (
        line
        | {"best_epoch": trained.state.best_epoch, "implicit_loss": f"{min(curve):.5f}"}
        | recalls("validation", trained.model, held_out, slices)
        | recalls("test", trained.model, data.test, slices)
        | {"seconds": f"{seconds:.1f}", "curve": " ".join(f"{value:.5f}" for value in curve)}
    )


def recalls(part: str, model: Model, points: Points, slices: Slices) -> dict[str, str]:
    """Recall@10 of a model, by slice."""
    return _recalls(part, top_labels(model, points, 10), points, slices)


def popular(name: str, root: Path) -> dict[str, Any]:
    """The line of the most popular labels."""
    data = read(name, root)
    held_out = split_validation(data, VALIDATION).held_out
    assert held_out is not None, "every data set of the sweep has enough points"
    line: dict[str, Any] = dict.fromkeys((*KEY, "best_epoch", "implicit_loss"), "")
    line |= {"dataset": name, "scheme": "most-popular"}
    train = Labels.from_counts(label_counts(data))
    for part, points in (("validation", held_out), ("test", data.test)):
        top = most_popular(train, len(points), 10, points.seen)
        line |= _recalls(part, top, points, data_slices(data))
    return line


def _recalls(part: str, top: torch.Tensor, points: Points, slices: Slices) -> dict[str, str]:
    labels = points.labels.values.long()
    point = torch.arange(len(points)).repeat_interleave(points.labels.offsets.diff())
    hit = (top.cpu()[point] == labels[:, None]).any(1).double()
    inside = {"full": torch.ones_like(labels, dtype=torch.bool)}
    inside |= {name: getattr(slices, name)[labels] for name in SLICES[1:]}
    return {f"{part}_{name}": f"{float(hit[inside[name]].mean()):.5f}" for name in SLICES}


def sweep(tasks: Sequence[Task], given: argparse.Namespace) -> int:
    """Perform the tasks within the budget, and write each line as it comes; returns how many."""
    context = get_context("spawn")
    stop = context.Event()
    lines = read_table(given.out)
    shared = shared_gpu(print) if given.device == "cuda" else nullcontext()
    done = 0
    with shared:
        pool = ProcessPoolExecutor(given.workers, context, _begin, (stop,))
        waiting = {pool.submit(perform, task, given.data, given.device): task for task in tasks}
        while waiting and time.monotonic() < given.until:
            ready, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ready:
                task = waiting.pop(future)
                if error := future.exception():
                    print(f"{' '.join(task.key)} failed: {error!r}", flush=True)
                    continue
                lines.append(future.result())
                done += 1
                print(f"[{done}/{len(tasks)}] {_summary(lines[-1])}", flush=True)
            if ready:
                write_lines(given.out, lines)
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return done


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """All lines with the columns of the longest; one of a run that diverged has fewer."""
    columns = max(lines, key=len)
    write_table(path, [{name: str(line.get(name, "")) for name in columns} for line in lines])


def _summary(line: dict[str, Any]) -> str:
    shown = (*KEY[:-2], "best_epoch", "implicit_loss", "validation_full", "validation_tail")
    return " ".join(str(line.get(name, "")) for name in (*shown, "test_full", "seconds"))


def main() -> int:
    """Run what is missing."""
    begun = time.monotonic()
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    places = os.environ.get("HEADTAIL_DATA", ".")
    parser.add_argument("--data", type=Path, default=Path(places), help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=RESULTS / "runs.csv")
    parser.add_argument("--only", nargs="*", default=None, help="data sets, by how they begin")
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, choices=SCHEMES)
    parser.add_argument("--rounds", nargs="*", type=int, help="0: the rates; 1, 2, 3: the others")
    parser.add_argument("--rates", nargs="*", type=float, default=None)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.until = begun + given.budget
    names = dict.fromkeys(each.data for each in SWEEPS)
    chosen = [name for name in names if name.startswith(tuple(given.only or names))]
    known = {
        tuple(line[name] for name in KEY)
        for path in {*RESULTS.glob("*.csv"), given.out}
        for line in read_table(path)
    }
    tasks = {
        task.key: task
        for each in SWEEPS
        for task in tasks_of(each)
        if task.data in chosen
        and task.key not in known
        and task.run.scheme in given.schemes
        and (given.rounds is None or task.round in given.rounds)
        and (given.rates is None or task.run.lr in given.rates)
    }
    baselines = [popular(name, given.data) for name in chosen]
    new = [line for line in baselines if tuple(str(line[name]) for name in KEY) not in known]
    if new:
        write_lines(given.out, [*read_table(given.out), *new])
    print(
        f"{len(tasks)} runs; the data are read after {time.monotonic() - begun:.0f} s", flush=True
    )
    ordered = sorted(
        tasks.values(), key=lambda task: (task.round, cost(task, read(task.data, given.data)))
    )
    done = sweep(ordered, given)
    print(f"{done} of {len(tasks)} runs in {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
