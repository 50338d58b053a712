"""One bootstrap resample of users or sessions, shared by all seeds, schemes and metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_POOLS = 2048
"""More groups than this are pooled at random before they are resampled: the variance of a sum over
random pools is that of the sum over groups, known to about 1/√(2·2048) = 1.6%.
"""


@dataclass(frozen=True, eq=False)
class Resample:
    """How often each pool of groups is in each bootstrap resample.

    Points of one group (the prefixes of a session, the labels of a user) are drawn together. The
    same object must be used for everything that is compared, so that differences are paired.

    Attributes:
        pool: `[n]` the pool of each point.
        times: `[r, p]` how often each of p pools is in each of r resamples.
    """

    pool: Ints
    times: Floats

    @classmethod
    def of(
        cls, groups: Ints, resamples: int = 1000, seed: int = 0, most_pools: int = MOST_POOLS
    ) -> Resample:
        """Resamples of the groups of n points, the same for equal arguments.

        Args:
            groups: `[n]` any numbers, equal for points of one group.
            resamples: how many.
            seed: of their choice.
            most_pools: more groups than this are pooled at random.
        """
        rng = np.random.default_rng(seed)
        _, group = np.unique(groups, return_inverse=True)
        number = int(group.max()) + 1 if len(group) else 0
        pools = min(number, most_pools)
        of_group = rng.permutation(number) % max(pools, 1)
        share = np.full(pools, 1 / max(pools, 1))
        return cls(of_group[group], rng.multinomial(pools, share, size=resamples).astype(float))

    def pooled(self, values: Floats) -> Floats:
        """`[…, p]` sums of `[…, n]` values by pool."""
        flat = values.reshape(-1, values.shape[-1])
        pools = self.times.shape[1]
        sums = [np.bincount(self.pool, weights=row, minlength=pools) for row in flat]
        return np.stack(sums).reshape(*values.shape[:-1], pools)

    def sums(self, values: Floats) -> Floats:
        """`[…, r]` sums of `[…, n]` values over the points of each resample."""
        return self.pooled(values) @ self.times.T

    def ratio(self, above: Floats, below: Floats) -> Floats:
        """`[…, r]` the ratio of sums, Σ above / Σ below, in each resample.

        >>> points = np.arange(4)
        >>> resample = Resample.of(points, resamples=3)
        >>> resample.ratio(np.full(4, 2.0), np.full(4, 4.0)).tolist()
        [0.5, 0.5, 0.5]
        """
        with np.errstate(invalid="ignore", divide="ignore"):  # no point of a slice: nan
            return self.sums(above) / self.sums(below)
