"""The paper's retrieval study: what do sampling schemes do to head and tail on real data?

    .venv/bin/python experiments/retrieval.py --data DATA --out experiments/results/retrieval

Delicious (m = 64), Diginetica and Nowplaying (m = 256), and generated data with the shapes of
AmazonCat-13K and WikiLSHTC-325K; within-batch and uniform × constant, importance, relative, tail,
and the full softmax and logit-adjusted loss; softmax and cosine-contrastive losses. Each scheme
tries the same learning rates with seed 0 and keeps the one with the lowest implicit loss, over all
labels, on held-out training points; two more seeds use that rate. The test set chooses nothing.

Resumable: runs with rows in --out are not run again. The results are in docs/results.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from traceback import format_exception

import torch

from headtail.comparison.results import Row, read_rows
from headtail.comparison.rows import baseline_rows, rows_of
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError
from headtail.evaluation.measures import measures_of
from headtail.evaluation.topk import top_labels
from headtail.files.atomic import write_text
from headtail.files.records import to_csv
from headtail.schemes import PAPER
from headtail.training.config import Run
from headtail.training.trainer import Trainer

EXACT = ("softmax", "logit-adjusted")
CONTRASTIVE = (
    *(f"contrastive/{name}" for name in PAPER),
    "contrastive",
    "contrastive/logit-adjusted",
)
EXCLUDED = tuple(name.replace("uniform:", "uniform(excluded):") for name in PAPER[:4])


@dataclass(frozen=True)
class Study:
    """One data set under one family of schemes."""

    data: str
    schemes: tuple[str, ...]
    run: Run
    rates: tuple[float, ...]
    seeds: int


_DELICIOUS = Run(
    batch=256,
    negatives=64,
    epochs=12,
    dropout=0.5,
    feature_dropout=0.2,
    schedule="linear",
    validation=0.1,
    patience=12,
)
_SESSIONS = Run(
    batch=1024,
    negatives=256,
    epochs=8,
    dropout=0.5,
    schedule="constant",
    validation=0.1,
    patience=1,
)
_GENERATED = Run(
    batch=1024,
    negatives=256,
    epochs=4,
    dropout=0.0,
    schedule="constant",
    validation=0.1,
    patience=1,
)
_RATES = (0.01, 0.02, 0.04)
_COSINE_RATES = (0.02, 0.05, 0.1)

STUDIES = (
    Study("delicious", (*PAPER, *EXACT), _DELICIOUS, _RATES, 3),
    Study("diginetica", (*EXACT, *PAPER), _SESSIONS, _RATES, 3),
    Study("nowplaying", (*EXACT, *PAPER), _SESSIONS, _RATES, 3),
    Study("delicious", EXCLUDED, _DELICIOUS, _RATES, 3),
    Study("synthetic:amazoncat-13k,scale=0.1", (*EXACT, *PAPER), _GENERATED, _RATES[1:], 1),
    Study("synthetic:wikilshtc-325k,scale=0.1", (*EXACT, *PAPER), _GENERATED, _RATES[1:], 1),
    Study("delicious", CONTRASTIVE, _DELICIOUS, _COSINE_RATES, 1),
    Study("diginetica", CONTRASTIVE, _SESSIONS, _COSINE_RATES[:2], 1),
    Study("nowplaying", CONTRASTIVE, _SESSIONS, _COSINE_RATES[:2], 1),
)


@dataclass(frozen=True)
class Task:
    """One scheme of one study: tuning, then the other seeds."""

    study: Study
    scheme: str
    folder: Path
    root: Path
    device: str
    threads: int = 1
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.folder / slug(self.study.data))


_LOADED: dict[str, DataSet] = {}


def perform(task: Task) -> str:
    """Tune, repeat with other seeds, and write one file of rows per run; returns a summary."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(task.threads)
    torch.set_float32_matmul_precision("high")
    begun = time.monotonic()
    study = task.study
    base = replace(study.run, scheme=task.scheme, seed=0)
    tried = {rate: attempt(replace(base, lr=rate), task) for rate in study.rates}
    best = min(tried, key=lambda rate: tried[rate])
    for seed in range(1, study.seeds):
        train(replace(base, lr=best, seed=seed), task)
    write_text(
        task.path / f"{slug(task.scheme)}.json",
        json.dumps({"scheme": task.scheme, "lr": best, "tried": tried}),
    )
    return (
        f"{study.data} {task.scheme}: lr {best:g} of {study.rates}, {time.monotonic() - begun:.0f} "
        "s"
    )


def attempt(run: Run, task: Task) -> float:
    """As `train`; a rate that diverges is not chosen."""
    try:
        return train(run, task)
    except HeadtailError as error:
        print(error, flush=True)
        return math.inf


def train(run: Run, task: Task) -> float:
    """Train one run and write its rows; returns its best validation value."""
    name = f"{slug(run.scheme)}-lr{run.lr:g}-seed{run.seed}-{fingerprint(run)}"
    path = task.path / "runs" / f"{name}.csv"
    if not path.exists():
        data = _LOADED.get(task.study.data)
        if data is None:
            _LOADED.clear()
            source = (
                task.study.data
                if task.study.data.startswith("synthetic")
                else task.root / task.study.data
            )
            data = _LOADED[task.study.data] = load(source)
        trained = Trainer(run, data, device=task.device).fit()
        found = measures_of(top_labels(trained.model, data.test, 50), data, data_slices(data))
        rows = rows_of(run, data, trained, found, name)
        write_text(path, to_csv(rows, Row))
        if not (task.path / "baseline.csv").exists():
            write_text(
                task.path / "baseline.csv", to_csv(baseline_rows(data, data_slices(data)), Row)
            )
    return min(row.value for row in read_rows(path) if row.metric == "implicit-loss")


def slug(text: str) -> str:
    """A file name for a scheme or data set."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def fingerprint(run: Run) -> str:
    """A digest of all settings."""
    return hashlib.blake2b(
        json.dumps(asdict(run), sort_keys=True).encode(), digest_size=4
    ).hexdigest()


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with delicious/, diginetica/, nowplaying/"
    )
    parser.add_argument("--out", type=Path, default=Path("experiments/results/retrieval"))
    which = range(len(STUDIES))
    parser.add_argument(
        "--only",
        nargs="*",
        type=int,
        default=which,
        choices=which,
        metavar="N",
        help="numbers of the studies to run",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes; several help on a GPU with its multi-process service",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    tasks = [
        Task(
            STUDIES[i],
            scheme,
            given.out,
            given.data,
            given.device,
            1 if given.device == "cuda" else torch.get_num_threads(),
        )
        for i in given.only
        for scheme in STUDIES[i].schemes
    ]
    failed = 0
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for number, done in enumerate(
            as_completed([pool.submit(perform, task) for task in tasks]), 1
        ):
            error = done.exception()
            failed += error is not None
            print(
                f"[{number}/{len(tasks)}] "
                f"{''.join(format_exception(error)) if error else done.result()}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
