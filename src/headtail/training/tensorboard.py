"""TensorBoard event files of a run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from headtail.training.callbacks import Callback, Progress


@final
class TensorBoard(Callback):
    """Writes a run's losses and validation values as it goes.

    Without TensorBoard, nothing is written and a warning of one line says so.

    Args:
        folder: for the event files; made with the first of them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.writer: Any = None
        self._installed = find_spec("tensorboard") is not None
        if not self._installed:
            warnings.warn(
                "No TensorBoard event files are written, because tensorboard is not installed. Run "
                "`pip install 'headtail[tensorboard]'` to have them.",
                stacklevel=2,
            )

    def on_step(self, progress: Progress, loss: float) -> None:
        """Write the loss of the latest steps."""
        self._write({"train/recent loss": loss}, progress.step)

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Write the epoch's loss and metrics."""
        self._write(metrics, progress.step)

    def on_end(self, progress: Progress) -> None:
        """Write what is still buffered."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if not self._installed:
            return
        if self.writer is None:
            self.writer = self._open(step)
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def _open(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # slow to load

        # TensorBoard reads files in the order of the seconds in their names.
        while any(self.folder.glob(f"*.{int(time.time())}.*")):
            time.sleep(0.02)
        # What an interrupted run wrote beyond its checkpoint is dropped.
        return SummaryWriter(self.folder, purge_step=step)
