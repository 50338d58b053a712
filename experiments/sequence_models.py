"""How good are encoders of sequences, and how close do sampled losses come to the full softmax?

    .venv/bin/python experiments/sequence_models.py DATA/beauty --out RUNS --device cuda

Beauty: one item of each user is left out for testing and one for validation; items a user has
already are not recommended, as where the published numbers come from (full softmax: nDCG@10 .0327,
3,000 negatives: .0295, over all users, `ndcg@10 all`). Diginetica: prefixes of test sessions;
sessions are held out of training to choose the epoch. The test part chooses nothing.

One row per run in OUT/NAME.csv: the best value on held-out points, metrics on the test part by
slice, seconds per epoch without evaluation. Resumable: finished rows are not run again, and a
stopped run continues. `--users` trains on the first sequences alone, to try things out.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from study_tables import read_table, write_table

from headtail.core.targets import Ragged
from headtail.data.histories import Histories
from headtail.data.load import load
from headtail.data.points import DataSet, Points
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError
from headtail.evaluation.measures import best_labels, measures_of
from headtail.training import held_out
from headtail.training.callbacks import Callback, Progress
from headtail.training.config import Run, Training
from headtail.training.recipes import OF_ENCODER
from headtail.training.trainer import Trainer

VALIDATION = 10_000
"""Held-out points: as many as where the published numbers come from."""
SETTINGS: dict[str, dict[str, Any]] = {
    "beauty": {"dropout": 0.5, "heads": 1, "stop_on": "recall@10"},
    "diginetica": {"dim": 128, "dropout": 0.3, "length": 20, "stop_on": "recall@10"},
}
"""What differs from an encoder's recipe, by the name of the data."""
SCHEMES = (
    "softmax",
    "within-batch:importance@256",
    "within-batch:importance@1024",
    "within-batch:relative@1024",
    "within-batch:infonce@1024",
    "uniform:importance@1024",
    "uniform:importance@3000",
    "mixture(within-batch,uniform):importance@1024",
    "mixture(within-batch,uniform):importance@3000",
)
"""The full softmax, and schemes that lean nowhere; relative and infonce weights for comparison."""
METRICS = ("ndcg@10", "recall@10", "recall@20", "mrr@10")
SLICES = ("full", "head", "torso", "tail")


class Timed(Trainer):
    """A trainer that measures each epoch, without the evaluation after it."""

    seconds: list[float]

    def fit(self) -> Any:
        """Train, from now on."""
        self.seconds = []
        self._begun = time.perf_counter()
        return super().fit()

    def _end_epoch(self) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        super()._end_epoch()
        self._begun = time.perf_counter()


def without_history(points: Points) -> Points:
    """Points that are not recommended what is in their history."""
    histories = points.features
    assert isinstance(histories, Histories)
    longest = int(histories.end.max())
    items = histories.window(longest)
    known = items >= 0
    offsets = torch.nn.functional.pad(known.sum(1).cumsum(0), (1, 0))
    return replace(points, seen=Ragged(items[known].long(), offsets))


def first_sequences(points: Points, number: int) -> Points:
    """The points of the first sequences."""
    assert isinstance(points.features, Histories)
    return points.select((points.features.row < number).nonzero().squeeze(1))


def read(folder: Path, users: int | None) -> DataSet:
    """The data, with the protocol of the published numbers."""
    data = load(folder)
    if users is not None:
        parts = {"train": data.train, "test": data.test}
        if data.validation is not None:
            parts["validation"] = data.validation
        few = {name: first_sequences(points, users) for name, points in parts.items()}
        data = replace(data, **few, digest=f"{data.digest}-{users}")
    if data.validation is not None:  # one left out of each user: what a user has is not recommended
        asked = {"test": data.test, "validation": data.validation}
        data = replace(data, **{name: without_history(points) for name, points in asked.items()})
    return data


def settings_of(given: argparse.Namespace, name: str) -> Training:
    """The encoder's recipe, changed for the data and by what was typed."""
    recipe = OF_ENCODER.get(given.encoder, lambda: Training(encoder=given.encoder))()
    training = replace(recipe, **SETTINGS.get(name, {}))
    names = [field.name for field in fields(Training)]
    typed = {name: value for name, value in vars(given).items() if name in names}
    return replace(training, **{name: value for name, value in typed.items() if value is not None})


def line_of(trainer: Timed, data: DataSet, run: Run) -> dict[str, Any]:
    """The row of a finished run."""
    trained = trainer.fit()
    measured = measures_of(best_labels(trained.model, data), data, data_slices(data), resamples=0)
    values = {(measure.metric, measure.slice): measure.value for measure in measured}
    asked = len(data.test) + (0 if data.unlabelled is None else len(data.unlabelled))
    steady = sorted(trainer.seconds)[: max(1, len(trainer.seconds) // 2)]
    return {
        "validation": -trained.state.best if run.stop_on != "implicit-loss" else trained.state.best,
        "best epoch": trained.state.best_epoch,
        "epochs": trained.state.epoch,
        "seconds per epoch": sum(steady) / max(1, len(steady)),
        "ndcg@10 all": values["ndcg@10", "full"] * len(data.test) / asked,
        **{
            f"{metric} {slice_}": values[metric, slice_]
            for metric in METRICS
            for slice_ in SLICES
            if (metric, slice_) in values
        },
    }


class Shown(Callback):
    """A line of progress per epoch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Print it."""
        metric, value = list(metrics.items())[-1]
        print(
            f"\r{self.name}: epoch {progress.epoch} of {progress.epochs}, {metric} {value:.4f}, "
            f"best in epoch {progress.best_epoch}   ",
            end="",
            file=sys.stderr,
            flush=True,
        )


def perform(given: argparse.Namespace, data: DataSet, name: str) -> None:
    """Run all schemes and seeds that have no row yet."""
    training = settings_of(given, name)
    path = given.out / f"{name}.csv"
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for scheme in given.schemes:
            run = Run(**asdict(training), scheme=scheme, seed=seed)
            text = f"{run} {data.digest} {given.start}"
            key = blake2b(text.encode(), digest_size=6).hexdigest()
            lines = read_table(path)
            if any(line["run"] == key for line in lines):
                continue
            folder = given.out / "runs" / key
            try:
                trainer = Timed(run, data, folder, device=given.device, callbacks=Shown(scheme))
                if given.start is not None:
                    torch.nn.init.normal_(trainer.model.head.weight, std=given.start)
                found = line_of(trainer, data, run)
            except HeadtailError as error:
                print(f"{scheme}: {error}", file=sys.stderr)
                continue
            about = {"run": key, "data": name, "encoder": run.encoder, "scheme": scheme}
            about |= {"seed": seed, "dim": run.dim, "lr": run.lr, "dropout": run.dropout}
            about |= {"batch": run.batch, "length": run.length, "weight_decay": run.weight_decay}
            about |= {"start": given.start or "", "heads": run.heads, "layers": run.layers}
            line = {column: str(value) for column, value in (about | found).items()}
            write_table(path, [*lines, line])
            short = ", ".join(
                f"{column} {found[column]:.4f}"
                for column in ("validation", "ndcg@10 all", "recall@20 full", "seconds per epoch")
            )
            print(f"\n{scheme}, seed {seed}: {short}", file=sys.stderr)


def parsed() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder or file with sequences")
    parser.add_argument("--out", type=Path, required=True, help="folder for rows and runs")
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", dest="first_seed", type=int, default=0)
    parser.add_argument("--encoder", default="sasrec", help="bag, gru or sasrec")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--users", type=int, help="only so many sequences, for a trial")
    for name in ("epochs", "batch", "dim", "layers", "heads", "length", "patience"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("lr", "dropout", "weight_decay"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float)
    parser.add_argument("--stop-on", dest="stop_on")
    parser.add_argument(
        "--start",
        type=float,
        help="deviation of initial label rows; by default 0.02 for sasrec, else 1/√d",
    )
    return parser.parse_args()


def main() -> None:
    """Run what was typed."""
    given = parsed()
    held_out.MOST_VALIDATION = VALIDATION
    warnings.simplefilter("ignore")  # about labels that are never drawn
    given.out.mkdir(parents=True, exist_ok=True)
    data = read(given.data, given.users)
    perform(given, data, given.data.stem)


if __name__ == "__main__":
    main()
