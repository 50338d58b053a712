"""TensorBoard event files of a run."""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headtail.training.state import State


class Events:
    """Writes a run's losses and validation values as it goes; a `Watch` for `Trainer`.

    Without TensorBoard, nothing is written and a warning of one line says so.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None
        self._written = 0
        self._installed = find_spec("tensorboard") is not None
        if not self._installed:
            warnings.warn(
                "No TensorBoard event files are written, because tensorboard is not installed. Run "
                "`pip install 'headtail[tensorboard]'` to have them.",
                stacklevel=2,
            )

    def __call__(self, state: State, steps: int, loss: float | None) -> None:
        """Write the loss of the latest steps, and at the end of an epoch its loss and metrics."""
        if not self._installed:
            return
        step = state.epoch * steps + state.step
        if self.writer is None:
            self.writer = self._open(step)
            # Points of the curve that an earlier part of the run has written.
            self._written = sum(epoch * steps < step for epoch, *_ in state.curve)
        if loss is not None:
            self.writer.add_scalar("train/recent loss", loss, step)
        for epoch, metric, value in state.curve[self._written :]:
            split = "train" if metric == "loss" else "validation"
            self.writer.add_scalar(f"{split}/{metric}", value, epoch * steps)
        self._written = len(state.curve)

    def _open(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # slow to load

        # TensorBoard reads files in the order of the seconds in their names.
        while any(self.folder.glob(f"*.{int(time.time())}.*")):
            time.sleep(0.02)
        # What an interrupted run wrote beyond its checkpoint is dropped.
        return SummaryWriter(self.folder, purge_step=step)

    def close(self) -> None:
        """Write what is still buffered."""
        if self.writer is not None:
            self.writer.close()
