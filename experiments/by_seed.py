"""Values by seed as `claims.judged` asks for them, for studies that kept nothing else: their
intervals leave out the test set's error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from evidence import LEAN
from stats.paired import Paired, paired

Values = Mapping[tuple[str, str, str, str], Sequence[float]]
"""Values of a data set, scheme, metric and slice, in the order of seeds, which count from 0."""


class BySeed:
    """One data set.

    Args:
        values: of all data sets.
        name: of the data set.
    """

    def __init__(self, values: Values, name: str) -> None:
        self.name = name
        self._values = {key[1:]: of for key, of in values.items() if key[0] == name}
        self.chosen = dict.fromkeys(scheme for scheme, _, _ in self._values)

    @property
    def rare(self) -> str:
        """The rarest slice that the test set has: tail, or torso where no label is that rare."""
        present = {slice_ for (_, _, slice_), of in self._values.items() if not math.isnan(of[0])}
        return next(slice_ for slice_ in ("tail", "torso") if slice_ in present)

    def by_seed(self, scheme: str, metric: str, slice_: str) -> list[float]:
        """Values in the order of seeds."""
        if slice_ == LEAN:
            tail, head = (self.by_seed(scheme, metric, name) for name in (self.rare, "head"))
            return [a - b for a, b in zip(tail, head, strict=True)]
        return list(self._values[scheme, metric, slice_])

    def mean(self, scheme: str, metric: str, slice_: str) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed(scheme, metric, slice_))

    def difference(self, scheme: str, other: str, metric: str, slice_: str) -> Paired:
        """A scheme minus another, paired by the seeds that both have."""
        pairs = zip(
            self.by_seed(scheme, metric, slice_), self.by_seed(other, metric, slice_), strict=False
        )
        return paired([a - b for a, b in pairs])
