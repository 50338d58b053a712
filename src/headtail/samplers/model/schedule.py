"""When a sampler looks at the whole label table again, and a warning if that takes long."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.errors import HeadtailError
from headtail.samplers.interfaces import ModelSampler
from headtail.samplers.sampler import Claims, Step

FIRST_STEPS = 32
"""Steps that the first summary, of an untrained table, is used for."""
FIRST_STEPS_DIVISOR = 4
"""The first summary of L labels is used for at least √L / 4 steps, since its cost grows with L."""
LABELS_PER_STEP = 64
"""A step changes a bounded number of rows, so a summary of L labels serves for L / 64 steps."""


def default_interval(num_labels: int) -> int:
    """Steps between two refreshes in the long run: L / 64, and at least 100.

    >>> default_interval(1_000_000)
    15625
    """
    return max(100, num_labels // LABELS_PER_STEP)


def next_refresh(step: int, num_labels: int, interval: int) -> int:
    """The step of the next refresh, after one at `step`.

    The first comes soon, each one after that when twice as many steps are done, and in the long run
    there is one every `interval` steps.

    >>> [next_refresh(step, 300, interval=100) for step in (0, 32, 64, 128, 228)]
    [32, 64, 128, 228, 328]
    >>> next_refresh(0, 1_000_000, interval=15625)
    250
    """
    soonest = max(step, FIRST_STEPS, math.isqrt(num_labels) // FIRST_STEPS_DIVISOR)
    return step + min(soonest, interval)


class Scheduled(ModelSampler):
    """A sampler that summarises the whole table from time to time and draws by that summary.

    A refresh of the summary needs the host, so a step that begins with one cannot be replayed as
    part of a CUDA graph; all others can. A graph knows tensors by their address, so the tensors of
    a summary are written in place.

    Attributes:
        interval: steps between two refreshes in the long run.
        share: how many neighbours of a batch get one draw.
        slow_seconds: a first summary that takes longer is worth a warning,
        slow_labels: if there are at least so many labels; with fewer, the time goes into setting up
            the libraries of a GPU.
    """

    interval: int
    share: int
    slow_seconds = 2.0
    slow_labels = 10_000
    _steps_done = 0
    _next_refresh = 0

    @property
    def claims(self) -> Claims:
        """A draw for each group of neighbours, by their scores."""
        return Claims(looks_at_model=True, shared=False, group=self.share)

    @property
    def has_summary(self) -> bool:
        """Whether there has been a first refresh."""
        return self._next_refresh > 0

    @property
    def refresh_due(self) -> bool:
        """Whether the next draw begins with a refresh: the first, and in training on schedule."""
        return not self.has_summary or (self.training and self._steps_done >= self._next_refresh)

    @property
    def settled(self) -> bool:
        """Unless a refresh is due."""
        return not self.refresh_due

    def count_step(self) -> None:
        """Count a training step, whether it ran eagerly or was replayed."""
        self._steps_done += self.training

    def _of_each(self, of_group: Tensor, number: int) -> Tensor:
        """The values of each group, repeated for its examples."""
        return of_group.repeat_interleave(self.share, 0)[:number]

    def _of_ids(self, of_group: Tensor, step: Step, ids: Int[Tensor, "*p n"]) -> Tensor:
        """The values of `[n]` or `[p, n]` ids for each example, from `[G, L]` of each group."""
        of_each = self._of_each(of_group, len(step.pairs.label))
        return of_each.gather(1, ids) if ids.dim() == 2 else of_each[:, ids.reshape(-1)]

    def _restore_schedule(self, state: Tensor, projections: int, dim: int) -> int:
        """Take over the steps of a saved state, and return d of the projections behind them.

        Args:
            state: steps done, the step of the next refresh, d, and `[projections, d, dim]` numbers.
            projections: how many.
            dim: their width.
        """
        numbers = state[:3].tolist() if state.dim() == 1 and bool(state.isfinite().all()) else []
        whole = len(numbers) == 3 and all(0 <= n < 2**53 and n == int(n) for n in numbers)
        if not whole or len(state) - 3 != projections * int(numbers[2]) * dim:
            raise HeadtailError(
                f"This is the state of a sampler with another `dim` than {dim}. Create both with "
                "the same `dim`."
            )
        self._steps_done, self._next_refresh, d = map(int, numbers)
        return d

    def _schedule_next(self) -> None:
        self._next_refresh = next_refresh(self._steps_done, self.num_labels, self.interval)

    def _store(self, name: str, value: Tensor) -> None:
        """Write a tensor in place; a new one is made only if its size or device changes."""
        old: Tensor = getattr(self, name)
        if old.shape == value.shape and old.device == value.device:
            old.copy_(value)
        else:
            with torch.inference_mode(False):  # or training could not write there later
                setattr(self, name, value.clone())

    def _move(self, name: str, device: torch.device) -> None:
        """Move a tensor to where it is needed, once: it was restored or first used elsewhere."""
        tensor: Tensor = getattr(self, name)
        if tensor.device != device:
            self._store(name, tensor.to(device))

    @contextmanager
    def _warning_if_slow(self) -> Iterator[None]:
        """Warn about a first summary that takes long, and say when the next ones follow."""
        begun = time.monotonic()
        yield
        seconds = time.monotonic() - begun
        slow = seconds > self.slow_seconds and self.num_labels >= self.slow_labels
        if self._steps_done == 0 and slow:
            first = next_refresh(0, self.num_labels, self.interval)
            warnings.warn(
                f"Looking at all {self.num_labels:,} labels took {seconds:.0f} s. The sampler does "
                f"so again after {first:,} steps, then less and less often, and in the long run "
                f"every {self.interval:,} steps.",
                stacklevel=3,
            )
