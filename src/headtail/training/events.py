"""TensorBoard event files of a run."""

from __future__ import annotations

import math
import time
from pathlib import Path

from headtail.training.trainer import State


class Events:
    """Writes a run's losses and validation values as it goes; a `Watch` for `Trainer`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = None
        self.told = 0

    def __call__(self, state: State, steps: int, loss: float) -> None:
        """Note the loss of the last steps, and what the epoch's end brought."""
        step = state.epoch * steps + state.step
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # files are read in the order of their seconds
            while any(self.folder.glob(f"*.{int(time.time())}.*")):
                time.sleep(0.02)
            # What an interrupted run wrote beyond its checkpoint is dropped.
            self.writer = SummaryWriter(self.folder, purge_step=step)
            self.told = sum(epoch * steps < step for epoch, *_ in state.curve)
        if math.isfinite(loss):
            self.writer.add_scalar("train/recent loss", loss, step)
        for epoch, metric, value in state.curve[self.told :]:
            self.writer.add_scalar(
                f"{'train' if metric == 'loss' else 'validation'}/{metric}", value, epoch * steps
            )
        self.told = len(state.curve)

    def close(self) -> None:
        """Write what is still held."""
        if self.writer is not None:
            self.writer.close()
