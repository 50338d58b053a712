"""Whole epochs of headtail's `Trainer`, and all schemes of the paper with evaluation; run by
`epoch.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from peers.cells import MIB, Cell, Found, memory_mib, serve
from peers.steps import run_of

from headtail.data.points import DataSet
from headtail.data.synthetic import generate
from headtail.evaluation.topk import top_labels
from headtail.schemes import PAPER
from headtail.training.callbacks import Callback, Progress
from headtail.training.trainer import Trainer

EPOCHS = 10
K = 50


class Clock(Callback):
    """When each epoch ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Note it."""
        self.ends.append(time.perf_counter())


def epoch(cell: Cell, data: DataSet) -> Found:
    """Seconds per epoch: the second one on a GPU, the only one, after a few steps, on a CPU."""
    clock = Clock()
    ends = clock.ends
    cuda = cell.device == "cuda"
    run = run_of(cell, epochs=2 if cuda else 1)
    trainer = Trainer(run, data, device=cell.device, callbacks=clock)
    if not cuda:
        trainer.model.train()
        for batch, _ in zip(trainer.step.order(1), range(3), strict=False):
            trainer.step(batch)
    ends.append(time.perf_counter())
    trainer.fit()
    seconds = ends[-1] - ends[-2]
    pairs = trainer.batches.steps * trainer.batches.size
    steps = trainer.batches.steps
    return {
        "seconds": round(seconds, 3),
        "steps": steps,
        "ms": round(1000 * seconds / steps, 4),
        "pairs_per_s": round(pairs / seconds),
    }


def schemes(cell: Cell, data: DataSet) -> Found:
    """Seconds for all schemes of the paper: training, then the top labels of every test point."""
    begun = time.perf_counter()
    steps = 0
    for scheme in PAPER:
        trained = Trainer(
            run_of(cell, scheme=scheme, epochs=EPOCHS), data, device=cell.device
        ).fit()
        top = top_labels(trained.model, data.test, min(K, cell.labels))
        assert len(top) == len(data.test)
        steps += EPOCHS * trained.steps_per_epoch
        del trained
    seconds = time.perf_counter() - begun
    return {
        "seconds": round(seconds, 2),
        "steps": steps,
        "pairs_per_s": round(steps * cell.batch / seconds),
    }


def measure(cell: Cell) -> Found:
    """Measure one part."""
    torch.manual_seed(0)
    data = generate(cell.shape)
    found = {"epoch": epoch, "schemes": schemes}[cell.part](cell, data)
    peak = torch.cuda.max_memory_allocated() / MIB if cell.device == "cuda" else memory_mib()
    return {
        **found,
        "points": len(data.train),
        "peak_mib": round(peak),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    serve(measure)
