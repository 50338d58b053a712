"""The paper's long-tail study: what do sampling schemes do to head and tail on images?

    .venv/bin/python experiments/longtail.py --data DATA --cifar cifar-10-batches-py --workers 8

Tiny-ImageNet-32 (200 classes, m = 32) and CIFAR-10-LT (m = 4), Exp and Step at imbalance 100;
ResNet-56 with the paper's CIFAR recipe. The full softmax, with and without post-hoc adjustment, the
logit-adjusted, equalised and adaptive losses; uniform and within-batch × constant, importance,
relative, tail; the same for the cosine-contrastive loss; m = 8, 16, 64, 128; and a warm-up.

Every run takes 21.8k steps of 128 images, as many as 256 epochs of CIFAR-100-LT Exp; the number of
epochs follows from the number of images and is printed. With eight parallel runs, a run takes half
a minute of an H200: study 0 takes a third of an hour, all studies under two hours. Studies run in
order of importance.

Resumable: finished runs are kept, and `--minutes` stops in time with every run saved.
`longtail_tables.py` turns --out into rows and tables; the results are in docs/results-longtail.md.
`headtail compare DATA --recipe cifar` (CIFAR-100), `--recipe imagenet-lt` and `--recipe
inaturalist` run the same schemes on other data sets.
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

from headtail.comparison.compare import Execution, run_grid
from headtail.comparison.grid import Cell, cells
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.report import write_report
from headtail.schemes import PAPER
from headtail.training.config import Training
from headtail.training.recipes import cifar

STEPS = 21_800
SOFTMAX = (
    "softmax",
    "softmax+post-hoc",
    "logit-adjusted",
    *PAPER[4:],
    *PAPER[:4],
    "equalised",
    "adaptive",
)
"""Most important first, in case time is short: within-batch before uniform."""
CONTRASTIVE = ("contrastive", *(f"contrastive/{name}" for name in (*PAPER[4:], *PAPER[:4])))
SWEEP = tuple(f"{name}@{m}" for m in (128, 8, 64, 16) for name in PAPER)
"""m = 32 is part of the main study; the extremes first, in case time is short."""


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
"""The last one tests the effect of a bad start: the rate rises over five epochs."""


def settings(study: Study, images: int, recipe: Training, steps: int = STEPS) -> Training:
    """The recipe with the study's negatives and the number of epochs closest to the steps.

    >>> settings(STUDIES[0], 21_549, Training(batch=128)).epochs
    130
    """
    epochs = max(1, round(steps / max(1, images // recipe.batch)))  # an incomplete batch is dropped
    return replace(
        recipe, negatives=study.negatives, epochs=epochs, warmup=study.warmup or recipe.warmup
    )


def perform(
    study: Study,
    source: partial[DataSet],
    recipe: Training,
    given: argparse.Namespace,
    command: str,
) -> int:
    """Run what is missing of a study; returns how many runs failed."""
    folder = given.out / study.name
    data = source()
    training = settings(study, len(data.train), recipe, given.steps)
    names = [
        name
        for name in study.schemes
        if not given.schemes or name.removesuffix("+post-hoc") in given.schemes
    ]
    if not names:
        print(f"{study.name} has none of the given schemes.", flush=True)
        return 0
    grid = cells(training, names, given.seeds or study.seeds, data, folder)
    trained = sum(cell.adjusts is None for cell in grid)
    steps = training.epochs * (len(data.train) // training.batch)
    print(
        f"{study.name}: {len(data.train):,} images, {data.train.num_labels} classes, "
        f"{training.epochs} epochs = {steps:,} steps, "
        f"{sum(cell.done for cell in grid)} of {len(grid)} runs done, {trained} of them trained",
        flush=True,
    )
    begun = time.monotonic()

    def finished(cell: Cell, sentence: str | None) -> None:
        print(
            f"{study.name} {cell.title}: {sentence or 'done'}, {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        if not given.keep_models:
            lighten(grid)

    execution = Execution(workers=given.workers, command=command, finished=finished, note=print)
    found = run_grid(grid, data, folder, slices="count", device=given.device, execution=execution)
    write_report(found, folder / "report.html")
    return len(found.failures)


def lighten(grid: Sequence[Cell]) -> None:
    """Delete the models of finished runs that no other run needs: only the rows are kept."""
    needed = {cell.adjusts for cell in grid if cell.adjusts is not None and not cell.done}
    for cell in grid:
        if cell.done and cell.folder not in needed:
            (cell.folder / "model.safetensors").unlink(missing_ok=True)
            shutil.rmtree(cell.folder / "events", ignore_errors=True)


def until_stopped(studies: Iterable[Callable[[], int]], minutes: float | None) -> int:
    """Run studies until Ctrl-C or until the time is up; returns an exit status."""
    timer = None if minutes is None else stop_after(minutes)
    try:
        failed = sum(study() for study in studies)
    except KeyboardInterrupt:
        print("Stopped and saved. Run the same command to resume.", flush=True)
        return 130
    except HeadtailError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if timer is not None:
            timer.cancel()
    return 1 if failed else 0


def stop_after(minutes: float) -> threading.Timer:
    """Send Ctrl-C after this time: every run saves and stops."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def main(recipe: Training | None = None) -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with tiny-imagenet-32/")
    parser.add_argument(
        "--cifar",
        type=Path,
        default=None,
        help="folder with CIFAR-10's python files, for its studies",
    )
    parser.add_argument("--out", type=Path, default=Path("experiments/results/longtail"))
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
    every = dict.fromkeys(
        name for study in STUDIES for name in study.schemes if not name.endswith("+post-hoc")
    )
    parser.add_argument(
        "--schemes",
        nargs="*",
        default=(),
        choices=every,
        metavar="SCHEME",
        help="run only these schemes, and their post-hoc versions",
    )
    parser.add_argument(
        "--seeds", type=int, help="number of seeds; by default three, and one for the sweep"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="approximate number of steps per run"
    )
    parser.add_argument("--workers", type=int, default=1, help="runs in parallel")
    parser.add_argument(
        "--minutes", type=float, default=None, help="stop after this time, with everything saved"
    )
    parser.add_argument(
        "--keep-models", action="store_true", help="keep the models of finished runs"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    places = {"tiny-imagenet-32": given.data / "tiny-imagenet-32", "cifar-10": given.cifar}

    def one(study: Study) -> int:
        place = places[study.data]
        if place is None:
            print(
                f"{study.name} is skipped: pass --cifar with the folder of CIFAR-10's files.",
                flush=True,
            )
            return 0
        source = partial(load, place, Reading(profile=study.profile))
        return perform(study, source, recipe or cifar(), given, shlex.join(["python", *sys.argv]))

    return until_stopped((partial(one, STUDIES[number]) for number in given.only), given.minutes)


if __name__ == "__main__":
    sys.exit(main())
