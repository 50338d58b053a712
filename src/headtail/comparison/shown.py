"""A comparison as a notebook shows it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from headtail.core.html import HtmlCell, frame, percent, sentences, table

Means = Mapping[str, Mapping[str, float]]
"""Scheme: slice: value."""


def comparison_html(
    detail: str,
    means: Means,
    losses: dict[str, str],
    *,
    lower_is_better: bool,
    notes: Iterable[str] = (),
) -> str:
    """A row per scheme, a column per slice, with bars and the best number of each column in bold.

    Args:
        detail: data, metric and seeds, in words.
        means: of the metric, by scheme and slice.
        losses: scheme: the name of the loss that it optimises; others are baselines, below.
        lower_is_better: whether the lowest number is the best.
        notes: sentences below.
    """
    slices = list(dict.fromkeys(name for by_slice in means.values() for name in by_slice))
    best = {}
    for name in slices:
        known = [means[scheme].get(name, math.nan) for scheme in losses if scheme in means]
        known = [value for value in known if math.isfinite(value)]
        best[name] = (min if lower_is_better else max)(known, default=math.nan)
    finite = [value for by in means.values() for value in by.values() if math.isfinite(value)]
    longest = max(finite, default=0.0) or 1.0
    rows = [
        [scheme, loss, *(_cell(means[scheme].get(n, math.nan), best[n], longest) for n in slices)]
        for scheme, loss in (losses | {name: "" for name in means if name not in losses}).items()
        if scheme in means
    ]
    body = table(["scheme", "optimises", *slices], rows, words=2) if rows else ""
    return frame("Comparison", detail, body, sentences(notes))


def _cell(value: float, best: float, longest: float) -> HtmlCell:
    if not math.isfinite(value):
        return HtmlCell(percent(value))
    return HtmlCell(percent(value), value / longest, bold=value == best)
