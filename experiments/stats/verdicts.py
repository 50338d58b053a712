"""Claims about a table, and verdicts that code computes: holds, does not hold, or inconclusive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from stats.paired import Paired, equivalence, outside

LEVEL = 0.05
"""Of every table: the chance that any of its verdicts is wrong by chance."""
Kind = Literal["above", "below", "follows"]
Answer = Literal["holds", "does not hold", "inconclusive"]


class Tested(NamedTuple):
    """The two p-values of a claim, or of a part of one, as rows keep them.

    Attributes:
        p_for: small if it holds.
        p_against: small if it fails.
    """

    p_for: float
    p_against: float


@dataclass(frozen=True)
class Claim:
    """What is claimed about a difference: a claim, or a part of one.

    Attributes:
        name: in words.
        kind: "above" (the difference is above 0), "below", or "follows" (it is within ± the
            margin).
        result: the measured difference.
        margin: the largest difference that counts as none.
    """

    name: str
    kind: Kind
    result: Paired
    margin: float

    @property
    def p_for(self) -> float:
        """Small if the claim holds; for a direction two-sided, as the other one was possible."""
        if self.kind == "follows":
            return equivalence(self.result, self.margin)
        one_sided = self.result.p_above() if self.kind == "above" else self.result.p_below()
        return min(1.0, 2 * one_sided)

    @property
    def p_against(self) -> float:
        """Small if the claim fails: a gain below the margin, or a difference above it."""
        if self.kind == "follows":
            return outside(self.result, self.margin)
        gain = self.margin
        below = self.result.p_below(gain) if self.kind == "above" else self.result.p_above(-gain)
        return min(1.0, 2 * below)


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim.

    Attributes:
        answer: holds, does not hold, or inconclusive.
        p_for: small if all parts hold; corrected for all claims of the table.
        p_against: small if one of them fails; likewise.
    """

    answer: Answer
    p_for: float
    p_against: float


def alone(parts: Sequence[Claim | Tested], level: float = LEVEL) -> Answer:
    """The answer to a claim if nothing else were asked."""
    return _answer(*_of_all(parts), level)


def verdicts(claims: Sequence[Sequence[Claim | Tested]], level: float = LEVEL) -> list[Verdict]:
    """The answers to all claims of a table, each a list of parts that must all hold.

    A claim has two hypotheses, and those of all claims are corrected as one family (Holm). That it
    holds has the largest p of its parts: all must hold (an intersection–union test). That it fails
    has the smallest, times their number: one failure is enough (Bonferroni). A part that holds by
    itself does not fail: a gain may be above 0 and below the margin.
    """
    own = [_of_all(parts) for parts in claims]
    corrected = holm([*(p_for for p_for, _ in own), *(p_against for _, p_against in own)])
    pairs = zip(corrected[: len(claims)], corrected[len(claims) :], strict=True)
    return [Verdict(_answer(*pair, level), *pair) for pair in pairs]


def _of_all(parts: Sequence[Claim | Tested]) -> tuple[float, float]:
    """The p of a claim for and against it, from those of its parts. A nan spreads, and Holm's
    method never rejects it.
    """
    p_for = np.max([part.p_for for part in parts])
    failing = [1.0 if part.p_for < LEVEL else part.p_against for part in parts]
    p_against = len(parts) * np.min(failing)
    return float(p_for), float(np.minimum(1.0, p_against))


def _answer(p_for: float, p_against: float, level: float) -> Answer:
    if p_for < level:
        return "holds"
    return "does not hold" if p_against < level else "inconclusive"


@dataclass(frozen=True)
class Preference:
    """Which of two is better.

    Attributes:
        answer: "first", "second", "equal" (within ± the margin) or "inconclusive".
        p_different: corrected for the table.
        p_equal: likewise.
        small: whether one is better by less than the margin.
    """

    answer: Literal["first", "second", "equal", "inconclusive"]
    p_different: float
    p_equal: float
    small: bool


def preferences(
    results: Sequence[Paired], margins: Sequence[float], level: float = LEVEL
) -> list[Preference]:
    """Which is better, for each difference of a first and a second: all corrected together."""
    return preferred([Compared.of(*pair) for pair in zip(results, margins, strict=True)], level)


class Compared(NamedTuple):
    """A difference of a first and a second, as rows keep it.

    Attributes:
        difference: above 0 where the first is better.
        margin: the largest one that counts as none.
        p: of the hypothesis that they do not differ.
        p_equal: of the hypothesis that they differ by more than the margin.
    """

    difference: float
    margin: float
    p: float
    p_equal: float

    @classmethod
    def of(cls, result: Paired, margin: float) -> Compared:
        """From a paired difference."""
        return cls(result.difference, margin, result.p, equivalence(result, margin))


def preferred(every: Sequence[Compared], level: float = LEVEL) -> list[Preference]:
    """Which is better, for each: all corrected together."""
    corrected = holm([*(one.p for one in every), *(one.p_equal for one in every)])
    found = []
    for i, one in enumerate(every):
        p_different = corrected[i]
        p_equal = corrected[len(every) + i]
        answer: Literal["first", "second", "equal", "inconclusive"] = "inconclusive"
        if p_different < level:
            answer = "first" if one.difference > 0 else "second"
        elif p_equal < level:
            answer = "equal"
        small = p_different < level and abs(one.difference) < one.margin
        found.append(Preference(answer, p_different, p_equal, small))
    return found


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected by Holm's method: those below α are rejected with at most α chance of any
    false rejection. A nan counts as a hypothesis that is not rejected.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = np.array([1.0 if math.isnan(value) else value for value in values])
    order = np.argsort(given, kind="stable")
    factors = len(given) - np.arange(len(given))
    stepped = np.minimum(1.0, np.maximum.accumulate(factors * given[order]))
    corrected = np.empty_like(stepped)
    corrected[order] = stepped
    return corrected.tolist()
