"""How long a run trains: its steps alone, without validation, saving and evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from headtail.training.callbacks import Callback, Progress
from headtail.training.state import State


@final
class Stopwatch(Callback):
    """Adds up the time between calls in which steps were made.

    A run that is interrupted and resumed has the mean step of its last part.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self._last: tuple[int, float] | None = None

    def on_step(self, progress: Progress, loss: float) -> None:
        """Add the time since the last call."""
        now = time.perf_counter()
        if self._last is not None:  # before it is the first step, which compiles kernels
            self.steps += progress.step - self._last[0]
            self.seconds += now - self._last[1]
        self._last = progress.step, now

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Leave out the validation before this moment."""
        self._last = progress.step, time.perf_counter()

    def times(self, state: State, steps_per_epoch: int) -> dict[str, float] | None:
        """Seconds per step, and for all epochs of a finished run; None if nothing was trained."""
        if not self.steps:
            return None
        step = self.seconds / self.steps
        return {"step_seconds": step, "training_seconds": step * state.epoch * steps_per_epoch}
