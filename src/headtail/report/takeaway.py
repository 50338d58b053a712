"""The first sentence of the page: which scheme is best, by how much, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from headtail.report.measured import Measured, Reference
from headtail.report.seed_mean import percent, points

MOST_NAMED = 3
"""Schemes that are named in a sentence; more are counted."""


class Ranking(NamedTuple):
    """Schemes by the yardstick on one slice.

    Attributes:
        measured: all numbers.
        slice: the slice.
        names: best first.
        alike: those with the same number as the best, as it is printed. The head breaks the tie: no
            scheme is named that another equals here and beats there.
    """

    measured: Measured
    slice: str
    names: list[str]
    alike: list[str]

    @classmethod
    def of(cls, measured: Measured, slice_: str) -> Ranking:
        """From the best to the worst."""
        by = measured.yardstick
        known = sorted(
            measured.known(by.metric, slice_),
            key=lambda name: -by.sign * measured.of(name, by.metric, slice_).value,
        )
        best = _shown(measured, known[0], slice_)
        alike = [name for name in known if _shown(measured, name, slice_) == best]
        alike.sort(key=lambda name: -_order(by.sign * measured.of(name, by.metric, "head").value))
        return cls(measured, slice_, [*alike, *known[len(alike) :]], alike)


def takeaway(measured: Measured, failures: dict[str, str]) -> str:
    """One sentence: which scheme is best where it matters, by how much, and what that costs."""
    by = measured.yardstick
    order = ("tail", "full", "torso", "head")
    slice_ = next((name for name in order if measured.known(by.metric, name)), None)
    if slice_ is None:
        failed = f": {_count(len(failures), 'run')} failed" if failures else ""
        return f"No scheme was measured{failed}."
    ranking = Ranking.of(measured, slice_)
    if len(ranking.names) == 1:
        return _only(ranking)
    best = ranking.names[0]
    head = _shown(measured, best, "head")
    tied = [name for name in ranking.alike if _shown(measured, name, "head") == head]
    if len(tied) > 1:
        return _tie(tied, Reference.of(measured), slice_)
    return _winner(ranking)


def _only(ranking: Ranking) -> str:
    """The sentence about a single scheme."""
    measured, slice_, (name, *_), _ = ranking
    by = measured.yardstick
    rest = [
        f"{_shown(measured, name, other)} on {other.capitalize()}"
        for other in ("head", "torso", "full")
        if other != slice_ and measured.known(by.metric, other)
    ]
    value = _shown(measured, name, slice_)
    text = f"{name} reaches a {slice_.capitalize()} {by.name} of {value}"
    return f"{text}, with {_listed(rest)}." if rest else f"{text}."


def _winner(ranking: Ranking) -> str:
    """The sentence about the best of several schemes."""
    measured, slice_, names, alike = ranking
    by = measured.yardstick
    reference = Reference.of(measured)
    best, second = names[:2]
    mean = measured.of(best, by.metric, slice_)
    where = f"{slice_.capitalize()} {by.name}"
    if best == reference.scheme:
        if len(alike) > 1:
            return f"{best} has the {by.best} {where} ({percent(mean.value)}){_same(ranking)}."
        change = mean.value - measured.of(second, by.metric, slice_).value
        other = second
        price = ""
    else:
        change = reference.difference(best, by.metric, slice_).value
        other = reference.name
        price = _price(reference, best, "head") if slice_ == "tail" else ""
    text = (
        f"{best} has the {by.best} {where} ({percent(mean.value)}, {points(change)} {by.against} "
        f"{other}){price}"
    )
    if len(alike) > 1:
        return f"{text}{_same(ranking)}."
    close = [name for name in names[1:] if mean.overlaps(measured.of(name, by.metric, slice_))]
    overlap = f"; its error bar overlaps with {_listed(close[:MOST_NAMED])}" if close else ""
    return f"{text}{overlap}."


def _same(ranking: Ranking) -> str:
    """Which schemes have the same number, and by how much the best is ahead on the head."""
    by = ranking.measured.yardstick
    others = ranking.alike[1:]
    first, second = (ranking.measured.of(n, by.metric, "head").value for n in ranking.alike[:2])
    has, least = ("has", "") if len(others) == 1 else ("have", "at least ")
    text = f"; {_named(others)} {has} the same"
    if not math.isfinite(first - second):
        return text
    gap = f"{100 * abs(first - second):.1f} points {'less' if by.sign > 0 else 'more'}"
    return f"{text}, but {least}{gap} on Head"


def _tie(tied: list[str], reference: Reference, slice_: str) -> str:
    """The sentence about schemes that only chance would rank."""
    by = reference.measured.yardstick
    change = reference.difference(tied[0], by.metric, slice_)
    apart = reference.scheme not in tied and change.known and change.value != 0
    against = f", {points(change.value)} {by.against} {reference.name}" if apart else ""
    price = ""
    if apart and slice_ == "tail":
        price = _price(reference, tied[0], "head", verbs=("cost", "gain"))
    value = _shown(reference.measured, tied[0], slice_)
    where = f"{slice_.capitalize()} {by.name}"
    return f"{_named(tied)} tie for the {by.best} {where} ({value}{against}){price}."


def _price(
    reference: Reference, scheme: str, slice_: str, verbs: tuple[str, str] = ("costs", "gains")
) -> str:
    """What a scheme costs or gains on another slice."""
    by = reference.measured.yardstick
    costs, gains = verbs
    change = reference.difference(scheme, by.metric, slice_)
    if not change.known:
        return ""
    gain = by.sign * change.value
    where = slice_.capitalize()
    size = f"{100 * abs(gain):.1f}"
    if size == "0.0":
        return f" and {costs} nothing on {where}"
    return (
        f" and {gains} {size} points on {where} too"
        if gain > 0
        else (f" and {costs} {size} points on {where}")
    )


def _shown(measured: Measured, name: str, slice_: str) -> str:
    return percent(measured.of(name, measured.yardstick.metric, slice_).value)


def _order(value: float) -> float:
    """For sorting: what was not measured is worst."""
    return value if math.isfinite(value) else -math.inf


def _named(names: Sequence[str]) -> str:
    return _listed(names) if len(names) <= MOST_NAMED else _count(len(names), "scheme")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
