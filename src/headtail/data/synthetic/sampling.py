"""Random streams, and drawing from cumulative laws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy import ndarray


def random_stream(seed: int, *purpose: int) -> np.random.Generator:
    """A stream of random numbers for one purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose])))


def place_on_line(cumulative: ndarray, points: ndarray) -> ndarray:
    """Where these points lie on a line cut into pieces that end at `cumulative`."""
    return np.minimum(np.searchsorted(cumulative, points, side="right"), len(cumulative) - 1)


def offsets_of(row: ndarray, num_rows: int) -> ndarray:
    """Offsets of sorted rows."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=num_rows))])


def solve(rising: Callable[[float], float], wanted: float, high: float) -> float:
    """Where a rising function reaches `wanted` between 0 and `high`, by halving."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high
