"""How many runs should share one GPU? Epochs per second of all runs together, by the number of runs
side by side, with CUDA's multi-process service and in turns without it.

Each run is a process of its own that trains the same scheme on generated data with one label per
point, whose steps are CUDA graphs. After its first epoch, which is not timed, it waits for the
others; then all train the same number of epochs, and the time counts until the last one is over.
`times_one` is the number of epochs per second divided by that of a single run with the service,
which is measured first. `service` says whether it was there. Runs of a study also hold out points,
test models and write files, which is not measured here.

Run: .venv/bin/python benchmarks/side_by_side.py [--runs 1 2 4 8 16] [--schemes SCHEME …]
     [--device cpu --tiny]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch

from headtail.data.load import load
from headtail.device.shared_gpu import shared_gpu
from headtail.errors import HeadtailError, check_count
from headtail.schemes import parse
from headtail.training.callbacks import Callback, Progress
from headtail.training.config import Run, Training
from headtail.training.recipes import with_defaults
from headtail.training.trainer import Trainer
from machine import append

ONE_LABEL = "labels-a-point=1,features-a-point=4"
DATA = f"synthetic:points=650000,test=1000,features=43000,labels=43000,{ONE_LABEL}"
TINY = f"synthetic:points=2000,test=100,features=500,labels=200,{ONE_LABEL}"
SCHEMES = ("within-batch:importance", "contrastive/uniform:tail", "softmax")
RUNS = (1, 2, 4, 8, 16)
EPOCHS = 8


class Clock(Callback):
    """Notes when a run and all others have ended their first epoch, and when it is over.

    Attributes:
        ready: a barrier of all runs.
        begun: when all runs had ended their first epoch.
        ended: when the last epoch of this run ended.
    """

    def __init__(self, ready: Any) -> None:
        self.ready = ready
        self.begun = self.ended = 0.0

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Wait after the first epoch; the loss of each was read, so the GPU has ended it."""
        if progress.epoch == 1:
            self.ready.wait()
            self.begun = time.time()
        self.ended = time.time()


def train(given: argparse.Namespace, scheme: str, ready: Any, times: Any) -> None:
    """One run: puts when it began and ended into a queue."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    data = load(given.data)
    usual = Training(batch=given.batch, negatives=given.batch // 4, dim=given.dim, validation=0)
    run = with_defaults(Run.of(replace(usual, epochs=1 + given.epochs), scheme), data)
    clock = Clock(ready)
    Trainer(run, data, device=given.device, callbacks=clock).fit()
    times.put((clock.begun, clock.ended))


def epochs_per_second(given: argparse.Namespace, scheme: str, runs: int) -> float:
    """Of so many runs together."""
    context = get_context("spawn")
    ready = context.Barrier(runs)
    times = context.Queue()
    given_to_each = (given, scheme, ready, times)
    workers = [context.Process(target=train, args=given_to_each, daemon=True) for _ in range(runs)]
    for worker in workers:
        worker.start()
    begun, ended = zip(*(times.get(timeout=600) for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return runs * given.epochs / (max(ended) - min(begun))


def main() -> None:
    """Measure all settings; rows are printed as they come, and go to results/side_by_side.csv."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--runs", nargs="+", type=int, default=RUNS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--tiny", action="store_true", help="small sizes; records nothing")
    given = parser.parse_args()
    try:
        for scheme in given.schemes:
            parse(scheme)  # a process that fails would let the others wait
        for runs in given.runs:
            check_count("runs", runs)
    except HeadtailError as error:
        parser.error(str(error))
    given.data, given.batch, given.dim = (TINY, 256, 16) if given.tiny else (DATA, 1024, 512)
    services = (True, False) if given.device == "cuda" else (False,)
    load(given.data)  # generated once, and then read from the cache
    rows = []
    for scheme in given.schemes:
        alone = None
        for service, runs in product(services, sorted({1, *given.runs})):
            missing: list[str] = []
            with shared_gpu(missing.append) if service else nullcontext():
                rate = epochs_per_second(given, scheme, runs)
            alone = rate if alone is None else alone
            row: dict[str, object] = {
                "device": given.device,
                "scheme": scheme,
                "service": "yes" if service and not missing else "no",
                "runs": runs,
                "epochs": given.epochs,
                "epochs_per_s": f"{rate:.3f}",
                "times_one": f"{rate / alone:.2f}",
            }
            print(row, *missing, flush=True)
            rows.append(row)
    if not given.tiny:
        # Not before: a parent that uses the GPU would become a client of the service itself.
        append("side_by_side", rows)


if __name__ == "__main__":
    main()
