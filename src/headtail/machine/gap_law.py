r"""How far a sampled scheme ends from its target after training, as seen on data sets that were
trained with both (docs/results-advice.md).

With G the largest gap in Recall@10 over head, torso and tail, and R the target's Recall@10 over
all labels,

.. math:: \log(G / R) = c_0 + c_1 α + c_2 (1 − α) τ + c_3 \log x,

where α is 0 for uniform negatives, 1 for those of the batch, and between for frequency(α); τ is
that of the target, 0 for the softmax; and x is L/m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from headtail.core.slices import NAMES
from headtail.schemes import parse


class Interval(NamedTuple):
    """An expected value, and the ends between which four of five were."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Interval:
        """All three multiplied."""
        return Interval(self.low * factor, self.middle * factor, self.high * factor)

    def cut(self, bound: float) -> Interval:
        """All three between -bound and bound.

        >>> Interval(-4.0, 1.0, 2.0).cut(3.0)
        Interval(low=-3.0, middle=1.0, high=2.0)
        """
        return Interval(*(max(-bound, min(bound, end)) for end in self))


@dataclass(frozen=True)
class ExpectedGap:
    """The gap of a sampled scheme to its target in Recall@10.

    Attributes:
        largest: over head, torso and tail, without its sign.
        by_slice: scheme minus target.
        points: whether these are points; else shares of the target's Recall@10 over all labels.
        inside: whether x lies in the range of the data that the law was fitted to.
    """

    largest: Interval
    by_slice: dict[str, Interval]
    points: bool
    inside: bool

    def consistent(self) -> ExpectedGap:
        """With no slice farther from the target than the upper end of the largest gap.

        The law fits slices apart from the largest, so their ends may exceed it.
        """
        bound = self.largest.high
        by_slice = {name: interval.cut(bound) for name, interval in self.by_slice.items()}
        return replace(self, by_slice=by_slice)


@dataclass(frozen=True)
class GapLaw:
    """The law, as `experiments/advice_tables.py` fitted it.

    Attributes:
        coefficients: c₀ to c₃.
        spread: of G on data sets that were left out, as factors on what is expected: a tenth of
            them was below the first, as many above the second.
        shares: by target ("softmax", "logit-adjusted"), sampler ("batch", "fixed") and slice, the
            gap as a share of the expected G.
        lowest: the lowest x.
        highest: the highest x.
        typical: by which factor G was missed on average on data sets that were left out.
        sources: number of these data sets.
        regret: by how many points the largest gap of the most negatives from the batch exceeded
            that of the best scheme there, on average.
    """

    coefficients: tuple[float, float, float, float]
    spread: tuple[float, float]
    shares: Mapping[str, Mapping[str, Mapping[str, tuple[float, float, float]]]]
    lowest: float
    highest: float
    typical: float
    sources: int
    regret: float = 0.0

    def expected(
        self, sampler: str, tau: float, x: float, recall: float | None = None
    ) -> ExpectedGap:
        """The expected gap.

        Args:
            sampler: "uniform", "frequency(0.75)", "within-batch".
            tau: of the target; beyond 1, which was not tested, the gap is that of 1.
            x: L/m.
            recall: the target's Recall@10 over all labels in percent, if it is known.
        """
        tau = min(tau, 1.0)
        alpha = exponent_of(sampler)
        assert alpha is not None, "the caller asks only for samplers that the law knows"
        size = math.exp(
            sum(c * v for c, v in zip(self.coefficients, terms(alpha, tau, x), strict=True))
        ) * (1.0 if recall is None else recall)
        low, high = self.spread
        of = self.shares["logit-adjusted" if tau else "softmax"]
        shares = of["batch" if alpha == 1 else "fixed"]
        return ExpectedGap(
            Interval(low, 1.0, high).times(size),
            {name: Interval(*shares[name]).times(size) for name in NAMES},
            points=recall is not None,
            inside=self.lowest <= x <= self.highest,
        )


def terms(alpha: float, tau: float, x: float) -> tuple[float, float, float, float]:
    """What the coefficients multiply."""
    return 1.0, alpha, (1 - alpha) * tau, math.log(x)


def exponent_of(sampler: str) -> float | None:
    """α of q ∝ π^α, or None for a sampler that the law does not know.

    >>> [exponent_of(name) for name in ("uniform", "frequency(0.5)", "within-batch", "block")]
    [0.0, 0.5, 1.0, None]
    """
    part = parse(f"{sampler}:importance").sampler
    assert part is not None, "a sampler was named"
    if part.name == "uniform":
        return 0.0
    if part.name == "within-batch":
        return 1.0
    if part.name == "frequency" and len(part.args) == 1:
        alpha = float(str(part.args[0]))
        return alpha if 0 <= alpha <= 1 else None
    return None
