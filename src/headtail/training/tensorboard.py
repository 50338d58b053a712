"""TensorBoard event files of a run."""

from __future__ import annotations

import os
import socket
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

    Without TensorBoard, nothing is written and a warning of one line says so. Where the files
    cannot be written, a warning says so too, and the run goes on without them.

    Args:
        folder: for the event files; made with the first of them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.writer: Any = None
        self._writes = find_spec("tensorboard") is not None
        if not self._writes:
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
        """Close the file."""
        writer = self.writer
        self.writer = None
        if writer is not None:
            self._try(writer.close)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if self._writes:
            self._try(lambda: self._write_events(values, step))

    def _write_events(self, values: Mapping[str, float], step: int) -> None:
        writer = self.writer or self._opened(step)
        for tag, value in values.items():
            self._event(step=step, summary={"value": [{"tag": tag, "simple_value": value}]})
        writer.flush()

    def _opened(self, step: int) -> Any:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{self._second():010d}.{socket.gethostname()}.{os.getpid()}.0"
        # In this thread: that of TensorBoard's own writer prints a traceback if a disk is full.
        self.writer = RecordWriter((self.folder / name).open("wb"))
        self._event(file_version="brain.Event:2")
        # What an interrupted run wrote beyond its checkpoint is dropped.
        self._event(step=step, session_log={"status": "START"})
        return self.writer

    def _second(self) -> int:
        """The present second, or one after those of the files that are there: TensorBoard reads
        files in the order of the seconds in their names, and clocks are set back.
        """
        before = [path.name.split(".")[3] for path in self.folder.glob("events.out.tfevents.*.*")]
        return max([int(time.time()), *(int(text) + 1 for text in before if text.isdecimal())])

    def _event(self, **fields: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), **fields)  # pyright: ignore[reportAttributeAccessIssue]
        self.writer.write(event.SerializeToString())

    def _try(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            self._writes = False
            self.writer = None
            warnings.warn(
                f"No more TensorBoard event files are written to `{self.folder}`: "
                f"{error.strerror}.",
                stacklevel=2,
            )
