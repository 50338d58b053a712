"""What the numbers say, in sentences that do not claim more than they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import rankdata

from headtail.report.measured import Estimate, Measured, Reference

FEW = 5
"""With fewer schemes than this, chance alone often puts them in order."""
MOST_NAMED = 3
"""Schemes in a row that one still reads."""


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent, or – where there is none.

    >>> percent(0.3123), percent(float("nan"))
    ('31.2%', '–')
    """
    return (
        "–"
        if value is None or not math.isfinite(value)
        else f"{100 * value:.{digits}f}%".replace("-", "−")
    )


def points(value: float | None) -> str:
    """A difference of shares in percentage points, with its sign.

    >>> points(-0.041), points(0.00004)
    ('−4.1', '0.0')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def with_error(estimate: Estimate) -> str:
    """A share with its error bar: ± deviation over seeds, or an interval.

    >>> with_error(Estimate(0.3, 0.28, 0.32, seeds=3)), with_error(Estimate(0.3, 0.27, 0.34, seeds=1))
    ('30.0% ± 2.0', '30.0% (27.0 to 34.0)')
    """
    if not estimate.known or not math.isfinite(estimate.low + estimate.high):
        return percent(estimate.value)
    if estimate.seeds > 1:
        return f"{percent(estimate.value)} ± {100 * estimate.deviation:.1f}"
    return f"{percent(estimate.value)} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def pareto_front(pairs: dict[str, tuple[float, float]]) -> list[str]:
    """The names no other beats: none is at least as good on both and better on one. Ordered by the
    first number.

    >>> pareto_front({"a": (0.5, 0.1), "b": (0.4, 0.3), "c": (0.4, 0.2)})
    ['b', 'a']
    """
    front = [
        name
        for name, (x, y) in pairs.items()
        if not any(u >= x and v >= y and (u > x or v > y) for u, v in pairs.values())
        and math.isfinite(x + y)
    ]
    return sorted(front, key=lambda name: pairs[name])


def takeaway(measured: Measured, failures: dict[str, str]) -> str:
    """One sentence: which scheme is best where it matters, by how much, and what that costs."""
    by = measured.yardstick
    slice_ = next(
        (name for name in ("tail", "full", "torso", "head") if measured.known(by.metric, name)),
        None,
    )
    if slice_ is None:
        return (
            f"No scheme was measured: {_count(len(failures), 'run')} failed."
            if failures
            else "No scheme was measured."
        )
    known = sorted(
        measured.known(by.metric, slice_),
        key=lambda name: -by.sign * measured.of(name, by.metric, slice_).value,
    )
    alike = [
        name
        for name in known
        if _shown(measured, name, slice_) == _shown(measured, known[0], slice_)
    ]
    # What reads the same is a tie, and the head breaks it: no scheme is named that another equals
    # here and beats there.
    alike.sort(key=lambda name: -_number(by.sign * measured.of(name, by.metric, "head").value))
    known = [*alike, *known[len(alike) :]]
    best = known[0]
    found = measured.of(known[0], by.metric, slice_)
    where = f"{slice_.capitalize()} {by.name}"
    if len(known) == 1:
        rest = [
            f"{percent(measured.of(best, by.metric, other).value)} on {other.capitalize()}"
            for other in ("head", "torso", "full")
            if other != slice_ and measured.known(by.metric, other)
        ]
        return f"{best} reaches a {where} of {percent(found.value)}" + (
            f", with {_listed(rest)}." if rest else "."
        )
    reference = Reference.of(measured)
    tied = [
        name for name in alike if _shown(measured, name, "head") == _shown(measured, best, "head")
    ]
    if len(tied) > 1:
        return _tie(tied, reference, slice_)
    second = measured.of(known[1], by.metric, slice_)
    if len(alike) > 1 and best == reference.scheme:
        return f"{best} has the {by.best} {where} ({percent(found.value)}){_same(measured, alike)}."
    if best == reference.scheme:
        change = found.value - second.value
        other = known[1]
        price = ""
    else:
        change = reference.difference(best, by.metric, slice_).value
        other = reference.name
        price = _price(reference, best, "head") if slice_ == "tail" else ""
    text = (
        f"{best} has the {by.best} {where} ({percent(found.value)}, {points(change)} {by.against} "
        f"{other}){price}"
    )
    if len(alike) > 1:
        return f"{text}{_same(measured, alike)}."
    close = [name for name in known[1:] if found.overlaps(measured.of(name, by.metric, slice_))]
    return text + (
        f"; its error bar overlaps with {_listed(close[:MOST_NAMED])}." if close else "."
    )


def _same(measured: Measured, alike: list[str]) -> str:
    """Who reads the same there, and what the first of them has ahead on the head."""
    by = measured.yardstick
    others = alike[1:]
    first, next_ = (measured.of(name, by.metric, "head").value for name in alike[:2])
    names = _listed(others) if len(others) <= MOST_NAMED else _count(len(others), "scheme")
    has, least = ("has", "") if len(others) == 1 else ("have", "at least ")
    if not math.isfinite(first - next_):
        return f"; {names} {has} the same"
    better = f"{100 * abs(first - next_):.1f} points {'less' if by.sign > 0 else 'more'}"
    return f"; {names} {has} the same, but {least}{better} on Head"


def _shown(measured: Measured, name: str, slice_: str) -> str:
    return percent(measured.of(name, measured.yardstick.metric, slice_).value)


def _number(value: float) -> float:
    """For an order: what was not measured is worst."""
    return value if math.isfinite(value) else -math.inf


def _tie(tied: list[str], reference: Reference, slice_: str) -> str:
    """Where chance alone would name a winner, none is named."""
    by = reference.measured.yardstick
    change = reference.difference(tied[0], by.metric, slice_)
    apart = reference.scheme not in tied and change.known and change.value != 0
    against = f", {points(change.value)} {by.against} {reference.name}" if apart else ""
    value = percent(reference.measured.of(tied[0], by.metric, slice_).value)
    names = _listed(tied) if len(tied) <= MOST_NAMED else _count(len(tied), "scheme")
    price = (
        _price(reference, tied[0], "head", verbs=("cost", "gain"))
        if apart and slice_ == "tail"
        else ""
    )
    return (
        f"{names} tie for the {by.best} {slice_.capitalize()} {by.name} ({value}{against}){price}."
    )


def _price(
    reference: Reference, scheme: str, slice_: str, verbs: tuple[str, str] = ("costs", "gains")
) -> str:
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
    return f" and {costs if gain < 0 else gains} {size} points on {where}" + (
        " too" if gain > 0 else ""
    )


@dataclass(frozen=True)
class Agreement:
    """Predicted lean against what was measured.

    Attributes:
        predicted: scheme: lean in nats.
        shift: scheme: what it did for the tail minus what it did for the head, against the
            reference.
        left_out: schemes without a prediction or a measurement.
        correlation: Spearman's, NaN where it has none.
    """

    predicted: dict[str, float]
    shift: dict[str, Estimate]
    left_out: list[str]
    correlation: float

    @classmethod
    def of(cls, measured: Measured, schemes: dict[str, dict[str, Any]]) -> Agreement:
        """Of every scheme whose lean tells what it does: answers adjusted afterwards lean in a way
        no loss shows.
        """
        reference = Reference.of(measured)
        shift = {name: reference.shift(name) for name in measured.schemes}
        lean = {
            name: about.get("lean")
            for name, about in schemes.items()
            if not name.endswith("+post-hoc")
        }
        predicted = {
            name: float(value)
            for name, value in lean.items()
            if value is not None and math.isfinite(value)
        }
        both = [name for name in measured.schemes if name in predicted and shift[name].known]
        left_out = [name for name in measured.schemes if name not in both]
        predicted = {name: predicted[name] for name in both}
        shift = {name: shift[name] for name in both}
        return cls(
            predicted,
            shift,
            left_out,
            spearman(list(predicted.values()), [found.value for found in shift.values()]),
        )

    @property
    def sentence(self) -> str:
        """The correlation in words."""
        count = len(self.predicted)
        size = f"{self.correlation:.2f}".replace("-", "−")
        if count < 2:
            return (
                "An order needs at least two schemes with a predicted lean and a measured head and "
                "tail."
            )
        if not math.isfinite(self.correlation):
            return (
                f"All {count} schemes have the same predicted lean or the same measured shift, so "
                "there is no order to compare."
            )
        if count < FEW:
            return (
                f"Spearman's rank correlation is {size}, but {count} schemes are too few to say "
                "whether the two orders agree."
            )
        verdict = next(word for least, word in _VERDICTS if self.correlation >= least)
        return (
            f"The predicted and the measured order {verdict}: Spearman's rank correlation over "
            f"{count} schemes is {size}."
        )


_VERDICTS = (
    (0.9, "agree"),
    (0.6, "mostly agree"),
    (0.3, "agree only weakly"),
    (-0.3, "disagree, as if there were no relation"),
    (-math.inf, "disagree, and one runs against the other"),
)


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN where one side has no order.

    >>> round(spearman([1, 2, 3], [1, 3, 2]), 6)
    0.5
    """
    if len(x) < 2:
        return math.nan
    # Leans that differ in their last digit only are equal.
    a, b = (
        rankdata([round(value, 6) for value in values]) - (len(values) + 1) / 2 for values in (x, y)
    )
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else math.nan


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
