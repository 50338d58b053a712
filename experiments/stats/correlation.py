"""Rank correlation of what was predicted and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy import stats

from stats.resample import Floats

EXACT_UP_TO = 9
"""Numbers whose orders are all enumerated, 9! = 362,880; beyond, orders are drawn at random."""
DRAWS = 100_000


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation.

    Attributes:
        value: from −1 to 1; nan where one side is constant, or there are fewer than three numbers.
        p: two-sided p-value of "the order is random".
        exact: whether every order was enumerated for it.
        number: how many pairs of numbers.
    """

    value: float
    p: float
    exact: bool
    number: int


def rank_correlation(
    predicted: Sequence[float], measured: Sequence[float], seed: int = 0
) -> RankCorrelation:
    """Spearman's rank correlation, with ties at their mean rank, and its permutation test.

    >>> rank_correlation([1, 2, 3, 4], [10, 20, 30, 40])
    RankCorrelation(value=1.0, p=0.08333333333333333, exact=True, number=4)
    """
    if len(predicted) != len(measured):
        raise ValueError(f"There are {len(predicted)} predictions of {len(measured)} measurements.")
    number = len(predicted)
    exact = number <= EXACT_UP_TO
    if number < 3:
        return RankCorrelation(math.nan, 1.0, exact, number)
    left = _standardised(predicted)
    right = _standardised(measured)
    if left is None or right is None:
        return RankCorrelation(math.nan, 1.0, exact, number)
    value = float(left @ right)
    if exact:
        orders = np.array(list(permutations(range(number))))
        drawn = 0
    else:
        rng = np.random.default_rng(seed)
        orders = rng.permuted(np.tile(np.arange(number), (DRAWS, 1)), axis=1)
        drawn = 1  # the order that was found is one of the possible ones
    as_far = np.abs(right[orders] @ left) >= abs(value) - 1e-12
    p = (float(as_far.sum()) + drawn) / (len(orders) + drawn)
    return RankCorrelation(round(value, 12), p, exact, number)


def _standardised(values: Sequence[float]) -> Floats | None:
    """Ranks with mean 0 and length 1; None where all are equal."""
    ranks = stats.rankdata(values)
    centred = ranks - ranks.mean()
    length = float(np.sqrt(centred @ centred))
    return None if length == 0 else centred / length
