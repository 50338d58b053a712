"""When a sampler looks at the whole table anew, and a word where that takes long."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

FIRST = 32
"""Steps after which the first look, at an untrained table, is thrown away."""
FIRST_SHARE = 4
"""The first look at L labels serves √L / 4 steps at least: the more there are, the longer it takes."""
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
    """The step of the next look, after one at step `taken`: at first soon, then after twice as many, at last `every` so many.

    >>> [next_look(taken, 300, every=100) for taken in (0, 32, 64, 128, 228)]
    [32, 64, 128, 228, 328]
    >>> next_look(0, 1_000_000, every=15625)
    250
    """
    return taken + min(max(taken, FIRST, math.isqrt(num_labels) // FIRST_SHARE), every)


@contextmanager
def telling(num_labels: int, taken: int, every: int) -> Iterator[None]:
    """Tell of a first look that takes long, and how often it will come again."""
    begun = time.monotonic()
    yield
    seconds = time.monotonic() - begun
    if taken == 0 and seconds > LONG and num_labels >= MANY:
        warnings.warn(
            f"To look at all {num_labels:,} labels took {seconds:.0f} s. The sampler does so again after "
            f"{next_look(0, num_labels, every):,} steps, then ever more rarely, and at last every {every:,} steps.",
            stacklevel=3,
        )
