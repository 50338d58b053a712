"""The test rows of a comparison: means per scheme, metric and slice, and their reference."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from headtail.comparison.results import POPULAR, Comparison, Row
from headtail.core.slices import NAMES
from headtail.report.seed_mean import SeedMean

SLICES = (*NAMES, "cold", "full")
"""In the order of columns; "cold" holds labels that only their features describe."""


@dataclass(frozen=True)
class Yardstick:
    """The metric that head and tail are judged by.

    Attributes:
        metric: its name in the rows.
        name: in a sentence.
        best: the adjective of the best value.
        against: the preposition of a difference.
        sign: 1 if more is better, −1 if less is.
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


class Measured:
    """The test rows of a comparison, by scheme, metric and slice.

    Attributes:
        schemes: those with a test row, in the order requested; without `most-popular`.
        popular: whether `most-popular` was measured.
        metrics: the metrics, in the order of the rows.
        yardstick: what head and tail are judged by: errors for classification, Recall@10 for
            retrieval.
    """

    def __init__(self, comparison: Comparison) -> None:
        rows: dict[tuple[str, str, str], dict[int, Row]] = defaultdict(dict)
        for row in comparison.rows:
            if row.split != "test":
                continue
            by_seed = rows[row.scheme, row.metric, row.slice]
            # Of a run that was tested more than once, the last test counts.
            if row.seed not in by_seed or row.step >= by_seed[row.seed].step:
                by_seed[row.seed] = row
        self._rows = dict(rows)
        tested = dict.fromkeys(scheme for scheme, _, _ in self._rows)
        self.popular = POPULAR in tested
        order = dict.fromkeys([*comparison.schemes, *tested])
        self.schemes = [name for name in order if name in tested and name != POPULAR]
        self.metrics = list(dict.fromkeys(metric for _, metric, _ in self._rows))
        self.yardstick = ERROR if comparison.data.get("task") == "classification" else RECALL

    @property
    def with_popular(self) -> list[str]:
        """The schemes, and `most-popular` if it was measured."""
        return [*self.schemes, *([POPULAR] if self.popular else [])]

    @property
    def rare(self) -> str:
        """The slice that is compared with the head: the tail, or the torso if there is no tail."""
        names = (name for name in ("tail", "torso") if self.known(self.yardstick.metric, name))
        return next(names, "tail")

    def by_seed(self, scheme: str, metric: str, slice_: str) -> dict[int, float]:
        """The number of each seed, without NaN."""
        rows = self._rows.get((scheme, metric, slice_), {})
        return {seed: row.value for seed, row in rows.items() if math.isfinite(row.value)}

    def of(self, scheme: str, metric: str, slice_: str) -> SeedMean:
        """The mean over seeds with its error bar."""
        by_seed = self.by_seed(scheme, metric, slice_)
        if len(by_seed) != 1:
            return SeedMean.of(by_seed)
        row = self._rows[scheme, metric, slice_][next(iter(by_seed))]
        return SeedMean.of(by_seed, (row.low, row.high))

    def known(self, metric: str, slice_: str) -> list[str]:
        """The schemes with a number for this metric and slice."""
        return [scheme for scheme in self.schemes if self.by_seed(scheme, metric, slice_)]


@dataclass(frozen=True)
class Reference:
    """What the schemes are compared with: `softmax` if it was trained, otherwise their mean.

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

    def difference(self, scheme: str, metric: str, slice_: str) -> SeedMean:
        """Scheme minus reference, seed by seed: luck that both share with a seed cancels."""
        return SeedMean.of(self._differences(scheme, metric, slice_))

    def shift(self, scheme: str) -> SeedMean:
        """How much more a scheme improved the tail than the head, compared with the reference."""
        by = self.measured.yardstick
        head = self._differences(scheme, by.metric, "head")
        tail = self._differences(scheme, by.metric, self.measured.rare)
        return SeedMean.of(
            {seed: by.sign * tail[seed] - by.sign * head[seed] for seed in tail if seed in head}
        )

    def _differences(self, scheme: str, metric: str, slice_: str) -> dict[int, float]:
        theirs = self.by_seed(metric, slice_)
        ours = self.measured.by_seed(scheme, metric, slice_)
        return {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
