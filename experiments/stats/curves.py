"""Two trade-off curves compared at equal head recall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stats.paired import Paired, paired
from stats.resample import Floats

KEPT = (0.9, 0.75, 0.5)
"""Shares of the softmax's head recall at which curves are compared, stated before any run."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Head and tail recall along a curve, for each seed, on the test set and its resamples.

    Attributes:
        head: `[seeds, taus]` on the whole test set.
        tail: likewise.
        head_resampled: `[seeds, taus, r]` in each resample.
        tail_resampled: likewise.
    """

    head: Floats
    tail: Floats
    head_resampled: Floats
    tail_resampled: Floats

    @property
    def reach(self) -> tuple[float, float]:
        """The head recalls that the curve of every seed has."""
        return float(self.head.min(axis=1).max()), float(self.head.max(axis=1).min())


def tail_at(head: Floats, tail: Floats, level: float) -> float:
    """Tail recall where head recall is at a level, linear between neighbouring heads; beyond the
    ends of the curve, that of the end.

    >>> round(tail_at(np.array([0.5, 0.3]), np.array([0.1, 0.2]), 0.4), 6)
    0.15
    """
    order = np.argsort(head, kind="stable")
    return float(np.interp(level, head[order], tail[order]))


@dataclass(frozen=True, eq=False)
class Level:
    """A head recall at which curves are compared: a share of what the softmax has.

    Attributes:
        value: on the whole test set.
        resampled: `[r]` in each resample, because a harder resample lowers every head recall.
    """

    value: float
    resampled: Floats

    @classmethod
    def of(cls, share: float, curve: Curve) -> Level:
        """A share of the head recall at the first τ of a curve, which is the softmax."""
        means = curve.head_resampled[:, 0].mean(axis=0)
        return cls(share * float(curve.head[:, 0].mean()), share * means)


def at_equal_head(first: Curve, second: Curve, level: Level) -> Paired | None:
    """The tail recall of the first curve minus that of the second where both have this head recall,
    paired by seed and resample; None where the curve of a seed does not reach it.
    """
    low = max(first.reach[0], second.reach[0])
    high = min(first.reach[1], second.reach[1])
    if not low <= level.value <= high:
        return None
    seeds = range(len(first.head))
    by_seed = [
        tail_at(first.head[s], first.tail[s], level.value)
        - tail_at(second.head[s], second.tail[s], level.value)
        for s in seeds
    ]
    resampled = [
        np.mean([_at(first, s, r, here) - _at(second, s, r, here) for s in seeds])
        for r, here in enumerate(level.resampled)
    ]
    return paired(by_seed, np.array(resampled, dtype=np.float64))


def _at(curve: Curve, seed: int, resample: int, level: float) -> float:
    head = curve.head_resampled[seed, :, resample]
    return tail_at(head, curve.tail_resampled[seed, :, resample], level)
