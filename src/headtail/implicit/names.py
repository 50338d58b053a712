"""Recognising a margin: which loss of the literature it is, read off ρ itself and not off the
scheme that implied it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Margin, Separable

TOLERANCE = 1e-7


@dataclass(frozen=True)
class Name:
    """What a margin is called.

    Attributes:
        softmax: the name of the margin softmax, or None if it has none.
        decoupled: the name of the decoupled loss.
        rho: the margin as a formula.
    """

    softmax: str | None
    decoupled: str | None
    rho: str


def recognise(margin: Margin, labels: Labels, m: float | None = None) -> Name:
    """Find the loss whose margin this is.

    Args:
        margin: ρ.
        labels: gives π.
        m: the number of negatives, to write m/L rather than a number.

    >>> from headtail import LogitAdjusted
    >>> labels = Labels.from_counts([3, 2, 1])
    >>> recognise(LogitAdjusted(labels), labels).softmax
    'logit-adjusted loss (Menon et al. 2020)'
    """
    if not isinstance(margin, Separable):
        return Name(None, None, "ρ(y, y')")
    ids = torch.arange(labels.num_labels)
    positive = margin.log_positive(ids)
    negative = margin.log_negative(ids)
    for log_prior in (labels.log_prior(ids), labels.log_frequency(ids)):
        # Through two priors any line can be drawn, so the margin with a fixed intercept is tried
        # first.
        name = _adaptive(positive, negative, log_prior) or _power_law(
            positive, negative, log_prior, labels.num_labels, m
        )
        if name:
            return name
    return (
        _excluded(positive, negative, labels, m)
        or _increasing(positive, negative, labels.log_prior(ids))
        or Name(None, None, _parts(positive, negative))
    )


def _parts(positive: Tensor, negative: Tensor) -> str:
    """A margin without a formula, by the labels that it depends on."""
    varying = [
        name
        for name, part in (("ρ₁(y)", positive), ("ρ₂(y')", negative))
        if float(part.max() - part.min()) > TOLERANCE
    ]
    return _join(*varying) or "ρ₁(y) · ρ₂(y')"


@dataclass(frozen=True)
class _Line:
    """v = level + slope · x."""

    level: float
    slope: float


def _line(v: Float64[Tensor, " L"], x: Float64[Tensor, " L"]) -> _Line | None:
    """The straight line through (x, v), or None where there is none; labels with ρ = 0 or π = 0
    stay aside.
    """
    seen = (v > -math.inf) & (x > -math.inf)
    v = v[seen]
    x = x[seen]
    if len(v) == 0:
        return None
    if float(v.max() - v.min()) < TOLERANCE:
        return _Line(float(v[0]), 0.0)
    low = int(x.argmin())
    high = int(x.argmax())
    span = float(x[high] - x[low])
    if span < TOLERANCE:
        return None
    slope = float(v[high] - v[low]) / span
    slope = round(slope, 6) if abs(slope - round(slope, 6)) < TOLERANCE else slope
    level = float(v[low] - slope * x[low])
    return (
        _Line(level, slope)
        if float((v - level - slope * x).abs().max()) < TOLERANCE * (1 + abs(level))
        else None
    )


def _power_law(
    positive: Tensor, negative: Tensor, log_prior: Tensor, num_labels: int, m: float | None
) -> Name | None:
    first = _line(positive, log_prior)
    second = _line(negative, log_prior)
    if first is None or second is None:
        return None
    level = first.level + second.level
    factor = _constant(level, num_labels, m)
    if first.slope == 0 and second.slope == 0:
        if abs(level) < TOLERANCE:
            return Name("softmax cross-entropy", "decoupled loss", "1")
        direction = "downweighted" if level < 0 else "upweighted"
        return Name(f"softmax with {direction} negatives", "scaled decoupled loss", factor)
    if first.slope == 0:
        rho = _join(factor, _power("π_y'", second.slope))
        if second.slope == 1 and factor == "m":
            infonce = (
                "InfoNCE: the equalised loss (Tan et al. 2020) with negatives upweighted m times"
            )
            return Name(infonce, "tail-heavy decoupled loss", rho)
        if second.slope > 0:
            return Name("equalised loss (Tan et al. 2020)", "tail-heavy decoupled loss", rho)
        return Name("softmax with upweighted rare negatives", "head-heavy decoupled loss", rho)
    if second.slope == 0:
        rho = _join(factor, _power("π_y", first.slope))
        if first.slope > 0:
            return Name("softmax with upweighted head labels", "head-heavy decoupled loss", rho)
        return Name("softmax with upweighted tail labels", "tail-heavy decoupled loss", rho)
    if abs(first.slope + second.slope) < TOLERANCE and abs(level) < TOLERANCE:
        rho = "π_y'/π_y" if second.slope == 1 else f"(π_y'/π_y)^{second.slope:.3g}"
        if second.slope > 0:
            strength = "" if second.slope == 1 else f", strength {second.slope:.3g}"
            return Name(
                f"logit-adjusted loss (Menon et al. 2020){strength}",
                "tail-heavy decoupled loss",
                rho,
            )
        return Name("logit adjustment reversed", "head-heavy decoupled loss", rho)
    heavy = "tail" if second.slope > first.slope else "head"
    rho = _join(factor, _power("π_y", first.slope), _power("π_y'", second.slope))
    return Name(None, f"{heavy}-heavy decoupled loss", rho)


def _adaptive(positive: Tensor, negative: Tensor, log_prior: Tensor) -> Name | None:
    quarter = (-0.25 * log_prior).exp()
    first = _line(positive, torch.where(log_prior > -math.inf, quarter, -math.inf))
    flat = _line(negative, log_prior)
    if (
        first is None
        or flat is None
        or flat.slope != 0
        or first.slope <= 0
        or abs(first.level + flat.level) > TOLERANCE
    ):
        return None
    return Name(
        "adaptive loss (LDAM, Cao et al. 2019)",
        "tail-heavy decoupled loss",
        f"exp({first.slope:.3g}·π_y^-¼)",
    )


def _excluded(positive: Tensor, negative: Tensor, labels: Labels, m: float | None) -> Name | None:
    """Constant weights with the positive excluded: ρ = q_y' / (1 − q_y)."""
    total = torch.logsumexp(negative, 0)
    log_q = negative - total
    gap = positive + total + torch.log1p(-log_q.exp())
    if not bool(torch.isfinite(gap).all()) or float(gap.abs().max()) > TOLERANCE:
        return None
    inner = recognise(_Vectors(torch.zeros_like(positive), log_q), labels, m)
    if inner.softmax is None:
        return None
    denominator = inner.rho.replace("π_y'", "π_y").replace("(y')", "(y)")
    return Name(
        f"{inner.softmax}, positive excluded", inner.decoupled, f"{inner.rho}/(1 − {denominator})"
    )


def _increasing(positive: Tensor, negative: Tensor, log_prior: Tensor) -> Name | None:
    """ρ = F(π_y') for an increasing F: equal priors have equal ρ, larger priors no smaller ones."""
    flat = _line(positive, log_prior)
    if flat is None or flat.slope != 0:
        return None
    order = log_prior.argsort(stable=True)
    x = log_prior[order]
    v = negative[order] + flat.level
    step = x.diff()
    rise = v.nan_to_num(neginf=-1e300).diff()
    same = step.abs() < 1e-12
    if bool((rise[same].abs() > TOLERANCE).any()) or bool((rise < -TOLERANCE).any()):
        return None
    return Name("equalised loss (Tan et al. 2020)", "tail-heavy decoupled loss", "F(π_y')")


class _Vectors(Separable):
    def __init__(self, positive: Tensor, negative: Tensor) -> None:
        self._positive = positive
        self._negative = negative

    def log_positive(self, ids: Tensor) -> Tensor:
        return self._positive[ids]

    def log_negative(self, ids: Tensor) -> Tensor:
        return self._negative[ids]


def _constant(level: float, num_labels: int, m: float | None) -> str:
    known = {"": 0.0, "1/L": -math.log(num_labels)}
    if num_labels > 1:
        known["1/(L−1)"] = -math.log(num_labels - 1)
    if m:
        known |= {"m": math.log(m), "m/L": math.log(m / num_labels)}
    for text, value in known.items():
        if abs(level - value) < TOLERANCE:
            return text
    return f"{math.exp(level):.3g}" if abs(level) < 600 else f"e^{level:.3g}"


def _power(symbol: str, exponent: float) -> str:
    return symbol if exponent == 1 else f"{symbol}^{exponent:.3g}"


def _join(*factors: str) -> str:
    return " · ".join(factor for factor in factors if factor)
