"""What was measured: rows gathered into one number with an error bar a scheme, metric and slice."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from headtail.comparison.results import POPULAR, Comparison, Row
from headtail.core.slices import NAMES

SLICES = (*NAMES, "full")


@dataclass(frozen=True)
class Yardstick:
    """The metric that head and tail are judged by.

    Attributes:
        metric: its name in the rows.
        name: in a sentence.
        best: what the best value is called.
        against: the word between a difference and what it is a difference to.
        sign: 1 where more is better, −1 where less is.
    """

    metric: str
    name: str
    best: str
    against: str
    sign: int

    @property
    def title(self) -> str:
        """At the beginning of a line."""
        return self.name[0].upper() + self.name[1:]


RECALL = Yardstick("recall@10", "Recall@10", "best", "over", 1)
ERROR = Yardstick("balanced-error", "error", "lowest", "against", -1)


@dataclass(frozen=True)
class Estimate:
    """A number and its error bar.

    Attributes:
        value: the mean over seeds; NaN where nothing was measured.
        low: lower end of the error bar: mean − sample deviation over seeds, or the bootstrap
            interval of a single seed; or NaN.
        high: its upper end.
        seeds: how many seeds it is the mean of.

    >>> Estimate.of({0: 0.2, 1: 0.4}).value
    0.30000000000000004
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0

    @classmethod
    def of(
        cls, by_seed: dict[int, float], interval: tuple[float | None, float | None] = (None, None)
    ) -> Estimate:
        """From a number a seed; `interval` is the error bar where there is a single seed."""
        finite = [value for value in by_seed.values() if math.isfinite(value)]
        if not finite:
            return cls()
        mean = statistics.fmean(finite)
        if len(finite) > 1:
            deviation = statistics.stdev(finite)
            return cls(mean, mean - deviation, mean + deviation, len(finite))
        low, high = (math.nan if end is None else end for end in interval)
        return cls(mean, low, high, 1)

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return math.isfinite(self.value)

    @property
    def deviation(self) -> float:
        """The sample deviation over seeds; NaN where there is a single one."""
        return self.high - self.value if self.seeds > 1 else math.nan

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two error bars touch, so that which of the two is larger is not settled."""
        ends = (self.low, self.high, other.low, other.high)
        return all(map(math.isfinite, ends)) and self.low <= other.high and other.low <= self.high


class Measured:
    """The test rows of a comparison, by scheme, metric and slice.

    Attributes:
        schemes: those with a test row, in the order asked for; `most-popular` is not one of them.
        popular: whether `most-popular` was measured.
        metrics: the metrics, in the order of the rows.
        yardstick: what head and tail are judged by: errors for classification, Recall@10 for
            retrieval.
    """

    def __init__(self, comparison: Comparison) -> None:
        rows: dict[tuple[str, str, str], dict[int, Row]] = defaultdict(dict)
        for row in comparison.rows:
            if row.split == "test":
                found = rows[row.scheme, row.metric, row.slice]
                # a run tested more than once: its last test
                if row.seed not in found or row.step >= found[row.seed].step:
                    found[row.seed] = row
        self._rows = dict(rows)
        tested = dict.fromkeys(scheme for scheme, _, _ in self._rows)
        self.popular = POPULAR in tested
        order = dict.fromkeys([*comparison.schemes, *tested])
        self.schemes = [name for name in order if name in tested and name != POPULAR]
        self.metrics = list(dict.fromkeys(metric for _, metric, _ in self._rows))
        self.yardstick = ERROR if comparison.data.get("task") == "classification" else RECALL

    def by_seed(self, scheme: str, metric: str, slice_: str) -> dict[int, float]:
        """The number of each seed, NaN left out."""
        rows = self._rows.get((scheme, metric, slice_), {})
        return {seed: row.value for seed, row in rows.items() if math.isfinite(row.value)}

    @property
    def rare(self) -> str:
        """The slice that is set against the head: the tail, or the torso of data that have no tail."""
        return next(
            (name for name in ("tail", "torso") if self.known(self.yardstick.metric, name)), "tail"
        )

    def of(self, scheme: str, metric: str, slice_: str) -> Estimate:
        """The mean over seeds with its error bar."""
        by_seed = self.by_seed(scheme, metric, slice_)
        if len(by_seed) != 1:
            return Estimate.of(by_seed)
        row = self._rows[scheme, metric, slice_][next(iter(by_seed))]
        return Estimate.of(by_seed, (row.low, row.high))

    def known(self, metric: str, slice_: str) -> list[str]:
        """The schemes with a number for this metric and slice."""
        return [scheme for scheme in self.schemes if self.by_seed(scheme, metric, slice_)]


@dataclass(frozen=True)
class Reference:
    """What the schemes are compared with: `softmax` where it was trained, otherwise their mean.

    Attributes:
        measured: all numbers.
        scheme: "softmax", or None for the mean.
    """

    measured: Measured
    scheme: str | None

    @classmethod
    def of(cls, measured: Measured) -> Reference:
        """The reference of a comparison."""
        return cls(measured, "softmax" if "softmax" in measured.schemes else None)

    @property
    def name(self) -> str:
        """In words."""
        return self.scheme or "the mean of the schemes"

    def by_seed(self, metric: str, slice_: str) -> dict[int, float]:
        """The reference's number of each seed."""
        if self.scheme:
            return self.measured.by_seed(self.scheme, metric, slice_)
        gathered: dict[int, list[float]] = defaultdict(list)
        for scheme in self.measured.schemes:
            for seed, value in self.measured.by_seed(scheme, metric, slice_).items():
                gathered[seed].append(value)
        return {seed: statistics.fmean(values) for seed, values in gathered.items()}

    def difference(self, scheme: str, metric: str, slice_: str) -> Estimate:
        """Scheme minus reference, seed by seed: what both share of a seed's luck falls out."""
        theirs = self.by_seed(metric, slice_)
        ours = self.measured.by_seed(scheme, metric, slice_)
        return Estimate.of(
            {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
        )

    def shift(self, scheme: str) -> Estimate:
        """How much more a scheme did for the tail than for the head, against the reference: what it
        gained, or saved in errors.
        """
        by = self.measured.yardstick
        moved = {}
        for name in ("head", self.measured.rare):
            ours = self.measured.by_seed(scheme, by.metric, name)
            theirs = self.by_seed(by.metric, name)
            moved[name] = {
                seed: by.sign * (value - theirs[seed])
                for seed, value in ours.items()
                if seed in theirs
            }
        head, tail = moved.values()
        return Estimate.of({seed: tail[seed] - head[seed] for seed in tail if seed in head})
