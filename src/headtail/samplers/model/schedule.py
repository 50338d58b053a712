"""When a sampler looks at the whole table anew, and a word where that takes long."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from headtail.samplers.claims import Claims
from headtail.samplers.interfaces import ModelSampler

FIRST = 32
"""Steps after which the first look, at an untrained table, is thrown away."""
FIRST_SHARE = 4
"""The first look at L labels serves √L / 4 steps at least: the more there are, the longer it takes.
"""
LABELS_A_STEP = 64
"""A step moves a bounded number of rows, so a look at L labels may serve L / 64 steps."""
LONG = 2.0
"""Seconds after which one wonders what is going on."""
MANY = 10_000
"""Labels; with fewer, what takes long is a GPU's libraries setting themselves up."""


def in_the_long_run(num_labels: int) -> int:
    """Steps between two looks: L / 64, and at least 100.

    >>> in_the_long_run(1_000_000)
    15625
    """
    return max(100, num_labels // LABELS_A_STEP)


def next_look(taken: int, num_labels: int, every: int) -> int:
    """The step of the next look, after one at step `taken`: at first soon, then after twice as
    many, at last `every` so many.

    >>> [next_look(taken, 300, every=100) for taken in (0, 32, 64, 128, 228)]
    [32, 64, 128, 228, 328]
    >>> next_look(0, 1_000_000, every=15625)
    250
    """
    return taken + min(max(taken, FIRST, math.isqrt(num_labels) // FIRST_SHARE), every)


class Scheduled(ModelSampler):
    """A sampler that looks at the whole table now and then, and in between draws by its notes.

    A look takes the host, so a step that begins with one cannot be replayed as part of a CUDA
    graph; all others can. A graph knows tensors by their address, so notes are written in place.

    Attributes:
        every: steps between two looks in the long run.
        share: how many neighbours of a batch get one draw.
    """

    every: int
    share: int
    _taken = _due = 0

    @property
    def claims(self) -> Claims:
        """A draw for each group of neighbours, by their scores."""
        return Claims(looks_at_model=True, shared=False, group=self.share)

    @property
    def due(self) -> bool:
        """Whether the next draw begins with a look: the very first, and in training whenever notes
        have served their time.
        """
        return self._due == 0 or (self.training and self._taken >= self._due)

    def passed(self) -> None:
        """Count a step of training that was taken, or replayed."""
        self._taken += self.training

    def set_next_look(self) -> None:
        """After a look."""
        self._due = next_look(self._taken, self.num_labels, self.every)

    def note(self, name: str, value: Tensor) -> None:
        """Write a tensor in place; where it has another size, or place, for the first time."""
        old: Tensor = getattr(self, name)
        if old.shape == value.shape and old.device == value.device:
            old.copy_(value)
        else:
            with torch.inference_mode(False):  # or training could not write there later
                setattr(self, name, value.clone())

    def bring(self, name: str, device: torch.device) -> None:
        """A tensor to where it is needed: once, where it was restored or first used elsewhere."""
        tensor: Tensor = getattr(self, name)
        if tensor.device != device:
            self.note(name, tensor.to(device))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell of a first look that takes long, and how often it will come again."""
        begun = time.monotonic()
        yield
        seconds = time.monotonic() - begun
        if self._taken == 0 and seconds > LONG and self.num_labels >= MANY:
            warnings.warn(
                f"To look at all {self.num_labels:,} labels took {seconds:.0f} s. The sampler does "
                "so again after "
                f"{next_look(0, self.num_labels, self.every):,} steps, then ever more rarely, and "
                "at last every "
                f"{self.every:,} steps.",
                stacklevel=3,
            )
