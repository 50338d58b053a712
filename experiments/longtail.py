"""The paper's long-tail study: who wins on pictures, the head or the tail?

    .venv/bin/python experiments/longtail.py --data DATA --cifar cifar-10-batches-py --workers 8

Tiny-ImageNet-32 (200 classes, m = 32) and CIFAR-10-LT (m = 4), Exp and Step at imbalance 100; ResNet-56 under the paper's CIFAR
recipe. The full softmax, with and without post-hoc adjustment, the logit-adjusted, equalised and adaptive losses; uniform and
within-batch × constant, importance, relative, tail; the same for the cosine-contrastive loss; m = 8, 16, 64, 128; and a warm-up.

Every run takes 21.8k steps of 128 pictures, as 256 epochs of CIFAR-100-LT Exp do: epochs follow from the number of pictures and are
printed. With eight runs side by side a run costs half a minute of an H200: study 0 a third of an hour, all of them under two.
Studies run in the order of their numbers, which is that of their importance.

Resumable: finished runs are kept, and with `--minutes` the whole stops in time with every run saved. `longtail_tables.py` turns
what is in --out into rows and tables; `docs/results-longtail.md` says what came out. Other sets are compared under the same schemes
with `headtail compare DATA --recipe cifar` (CIFAR-100), `--recipe imagenet-lt` or `--recipe inaturalist`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from headtail.build import PAPER
from headtail.compare import Cell, cells, compare
from headtail.config import Training
from headtail.data.load import Reading, load
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.recipes import cifar
from headtail.report import write_report

STEPS = 21_800
SOFTMAX = ("softmax", "softmax+post-hoc", "logit-adjusted", *PAPER[4:], *PAPER[:4], "equalised", "adaptive")
"""In the order in which they are missed if time is short: within-batch before uniform."""
CONTRASTIVE = ("contrastive", *(f"contrastive/{name}" for name in (*PAPER[4:], *PAPER[:4])))
SWEEP = tuple(f"{name}@{m}" for m in (128, 8, 64, 16) for name in PAPER)
"""m = 32 is in the study that it is a sweep of; the ends first, in case time is short."""


@dataclass(frozen=True)
class Study:
    """One data set under one family of schemes."""

    name: str
    data: str
    profile: str
    negatives: int
    schemes: tuple[str, ...]
    seeds: int
    warmup: int = 0


STUDIES = (
    Study("tiny-exp", "tiny-imagenet-32", "exp", 32, SOFTMAX, 3),
    Study("tiny-step", "tiny-imagenet-32", "step", 32, SOFTMAX, 3),
    Study("cifar10-exp", "cifar-10", "exp", 4, SOFTMAX, 3),
    Study("tiny-exp-contrastive", "tiny-imagenet-32", "exp", 32, CONTRASTIVE, 3),
    Study("tiny-exp-sweep", "tiny-imagenet-32", "exp", 32, SWEEP, 1),
    Study("cifar10-step", "cifar-10", "step", 4, SOFTMAX, 3),
    Study("cifar10-exp-warm", "cifar-10", "exp", 4, SOFTMAX, 3, warmup=480),
)
"""The last one asks what of CIFAR-10-LT is owed to a bad start: the rate rises over five epochs."""


def settings(study: Study, pictures: int, recipe: Training, steps: int = STEPS) -> Training:
    """The recipe with the study's negatives, for as many epochs as come nearest to the steps.

    >>> settings(STUDIES[0], 21_549, Training(batch=128)).epochs
    130
    """
    epochs = max(1, round(steps / max(1, pictures // recipe.batch)))  # what is less than a batch waits for another epoch
    return replace(recipe, negatives=study.negatives, epochs=epochs, warmup=study.warmup or recipe.warmup)


def perform(study: Study, source: partial[DataSet], recipe: Training, given: argparse.Namespace, command: str) -> int:
    """Run what is missing of one study; returns how many runs failed."""
    folder, data = given.out / study.name, source()
    training = settings(study, len(data.train), recipe, given.steps)
    names = [name for name in study.schemes if not given.schemes or name.removesuffix("+post-hoc") in given.schemes]
    if not names:
        print(f"{study.name} has none of these schemes.", flush=True)
        return 0
    grid = cells(training, names, given.seeds or study.seeds, data, folder)
    trained = sum(cell.adjusts is None for cell in grid)
    steps = training.epochs * (len(data.train) // training.batch)
    print(
        f"{study.name}: {len(data.train):,} pictures, {data.train.num_labels} classes, {training.epochs} epochs = {steps:,} steps, "
        f"{sum(cell.done for cell in grid)} of {len(grid)} runs done, {trained} of them trained",
        flush=True,
    )
    begun = time.monotonic()

    def told(cell: Cell, sentence: str | None) -> None:
        print(f"{study.name} {cell.title}: {sentence or 'done'}, {time.monotonic() - begun:.0f} s", flush=True)
        if not given.keep_models:
            lighten(grid)

    how = {"device": given.device, "workers": given.workers, "told": told, "say": print, "command": command}
    found = compare(grid, source, folder, slices="count", **how)
    write_report(found, folder / "report.html")
    return len(found.failures)


def lighten(grid: Sequence[Cell]) -> None:
    """Drop the models of finished runs that no other run will answer with: rows are what the study is about."""
    needed = {cell.adjusts for cell in grid if cell.adjusts is not None and not cell.done}
    for cell in grid:
        if cell.done and cell.folder not in needed:
            (cell.folder / "model.safetensors").unlink(missing_ok=True)
            shutil.rmtree(cell.folder / "events", ignore_errors=True)


def until_stopped(studies: Iterable[Callable[[], int]], minutes: float | None) -> int:
    """Perform studies, each of which says how many runs failed, until Ctrl-C or the time is up; returns an exit status."""
    timer = None if minutes is None else stop_after(minutes)
    try:
        failed = sum(study() for study in studies)
    except KeyboardInterrupt:
        print("Stopped, and saved. The same command goes on.", flush=True)
        return 130
    except HeadtailError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if timer is not None:
            timer.cancel()
    return 1 if failed else 0


def stop_after(minutes: float) -> threading.Timer:
    """As if somebody pressed Ctrl-C then: every run saves and stops."""
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def main(recipe: Training | None = None) -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with tiny-imagenet-32/")
    parser.add_argument("--cifar", type=Path, default=None, help="folder with CIFAR-10's python files; studies of it need it")
    parser.add_argument("--out", type=Path, default=Path("experiments/results/longtail"))
    which = range(len(STUDIES))
    parser.add_argument(
        "--only", nargs="*", type=int, default=which, choices=which, metavar="N", help="numbers of the studies to run"
    )
    every = dict.fromkeys(name for study in STUDIES for name in study.schemes if not name.endswith("+post-hoc"))
    parser.add_argument(
        "--schemes",
        nargs="*",
        default=(),
        choices=every,
        metavar="SCHEME",
        help="only these of a study's schemes, and their post-hoc answers",
    )
    parser.add_argument("--seeds", type=int, help="how many seeds; three, and one of the sweep, by default")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run, about")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, default=None, help="stop then, with everything saved")
    parser.add_argument("--keep-models", action="store_true", help="models of finished runs are dropped otherwise")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    places = {"tiny-imagenet-32": given.data / "tiny-imagenet-32", "cifar-10": given.cifar}

    def one(study: Study) -> int:
        place = places[study.data]
        if place is None:
            print(f"{study.name} is left out: pass --cifar with a folder of CIFAR-10's python files.", flush=True)
            return 0
        source = partial(load, place, Reading(profile=study.profile))
        return perform(study, source, recipe or cifar(), given, shlex.join(["python", *sys.argv]))

    return until_stopped((partial(one, STUDIES[number]) for number in given.only), given.minutes)


if __name__ == "__main__":
    sys.exit(main())
