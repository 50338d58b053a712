r"""Paired differences over seeds, with the error of the test set.

With difference $d_s$ of seed s on the whole test set, and $\bar d^{(r)}$ the mean over seeds in
bootstrap resample r, the variance of $\bar d$ is estimated as

$$V = \operatorname{var}_s(d_s)/S + \operatorname{var}_r(\bar d^{(r)}).$$

The first part is what other seeds would change, the second what other users or sessions would. What
is random for every pair of seed and point is in both, so V is too large by that part, and never too
small. Degrees of freedom are Satterthwaite's: those of the seeds alone, S − 1, count for the first
part, and the second is known. Without a test set's error this is the paired t-test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from stats.resample import Floats


@dataclass(frozen=True)
class Paired:
    """A difference, how uncertain it is, and why.

    Attributes:
        difference: the mean over seeds.
        error: its standard error, of seeds and test set together.
        freedom: degrees of freedom; inf where only the test set's error is known.
        seeds: how many.
        seed_error: the part of the error that is due to seeds; nan with one seed.
        test_error: the part that is due to the test set.
    """

    difference: float
    error: float
    freedom: float
    seeds: int
    seed_error: float
    test_error: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval of the difference."""
        half = _quantile((1 + level) / 2, self.freedom) * self.error
        return self.difference - half, self.difference + half

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p-value of "the difference is at most this bound": small if it is above."""
        return self._tail(self.difference - bound)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p-value of "the difference is at least this bound": small if it is below."""
        return self._tail(bound - self.difference)

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the schemes do not differ."""
        return min(1.0, 2 * min(self.p_above(), self.p_below()))

    def _tail(self, excess: float) -> float:
        if math.isnan(excess) or math.isnan(self.error):
            return 1.0
        if self.error == 0:  # every seed and every resample agree
            return 0.0 if excess > 0 else 1.0
        return float(_survival(excess / self.error, self.freedom))


def paired(differences: Sequence[float], resampled: Floats | None = None) -> Paired:
    """The mean of differences by seed, with its error.

    Args:
        differences: one per seed, on the whole test set.
        resampled: the mean over seeds in each bootstrap resample of the test set, all seeds in the
            same resamples; None leaves the test set's error out.

    >>> result = paired([0.01, 0.02, 0.03])
    >>> round(result.difference, 4), round(result.p, 4), result.freedom
    (0.02, 0.0742, 2.0)
    """
    given = np.asarray(differences, dtype=np.float64)
    number = len(given)
    if number == 0:
        raise ValueError("Pass one difference per seed.")
    seed_part = float(given.var(ddof=1)) / number if number > 1 else math.nan
    test_part = 0.0 if resampled is None else _variance(resampled)
    known = 0.0 if math.isnan(seed_part) else seed_part
    total = known + test_part
    if math.isnan(seed_part) and resampled is None:
        total = math.nan  # one seed and no resamples: nothing is known
    freedom = (number - 1) * (total / known) ** 2 if known > 0 else math.inf
    parts = (math.sqrt(seed_part), math.sqrt(test_part))
    return Paired(float(given.mean()), math.sqrt(total), freedom, number, *parts)


def margin_for(reference: float) -> float:
    """The largest difference that counts as none, stated before any run: the smaller of 2 points
    and 10% of the reference.

    >>> margin_for(0.5), round(margin_for(0.05), 6)
    (0.02, 0.005)
    """
    return min(0.02, 0.1 * abs(reference))


def equivalence(result: Paired, margin: float) -> float:
    """P-value of the two one-sided tests (TOST): small if the difference is within ± the margin."""
    return max(result.p_above(-margin), result.p_below(margin))


def outside(result: Paired, margin: float) -> float:
    """P-value of "the difference is within ± the margin": small if it is larger than that."""
    return min(1.0, 2 * min(result.p_above(margin), result.p_below(-margin)))


def _variance(resampled: Floats) -> float:
    finite = resampled[np.isfinite(resampled)]
    return float(finite.var(ddof=1)) if len(finite) > 1 else math.nan


def _quantile(probability: float, freedom: float) -> float:
    law = stats.norm if math.isinf(freedom) else stats.t(freedom)
    return float(law.ppf(probability))


def _survival(value: float, freedom: float) -> float:
    law = stats.norm if math.isinf(freedom) else stats.t(freedom)
    return float(law.sf(value))
