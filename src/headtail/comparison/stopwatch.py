"""How long a run trains: its steps alone, without validation, saving and evaluation."""

from __future__ import annotations

import time

from headtail.training.state import State


class Stopwatch:
    """Follows a run as a `Watch`, and adds up the time between calls in which steps were made.

    A run that is interrupted and resumed has the mean step of its last part.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self._last: tuple[int, float] | None = None

    def __call__(self, state: State, steps: int, loss: float | None) -> None:
        """Follow training."""
        done = state.epoch * steps + state.step
        now = time.perf_counter()
        if self._last is not None and loss is not None:
            self.steps += done - self._last[0]
            self.seconds += now - self._last[1]
        # The first step, which compiles kernels, and validation at the end of an epoch lie before
        # this moment.
        self._last = done, now

    def times(self, state: State, steps_per_epoch: int) -> dict[str, float] | None:
        """Seconds per step, and for all epochs of a finished run; None if nothing was trained."""
        if not self.steps:
            return None
        step = self.seconds / self.steps
        return {"step_seconds": step, "training_seconds": step * state.epoch * steps_per_epoch}
