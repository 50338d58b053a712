"""Recall or error by slice, as bars with their numbers, and the time of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headtail.comparison.results import POPULAR
from headtail.report.chart import Figure
from headtail.report.look import looks
from headtail.report.measured import RECALL, SLICES, Measured, Reference
from headtail.report.seed_mean import SeedMean, digits_of, duration, points, with_error

COLD = "Cold: items that never occur in training; the tail holds them too. "
RECALLS = ("recall@1", "recall@10", "recall@50")
Times = Mapping[str, Mapping[str, float]]


class Column(NamedTuple):
    """Bars below each other: a metric on a slice."""

    title: str
    metric: str
    slice: str


class Bar(NamedTuple):
    """One bar: its number in words, what is shown under the mouse, and its length and error bar as
    shares of the longest, or NaN.
    """

    scheme: str
    text: str
    tip: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


class Bars(NamedTuple):
    """A column of bars, as the page draws it."""

    title: str
    detail: str
    bars: list[Bar]


def slice_bars(measured: Measured, data: Mapping[str, Any], times: Times) -> Figure | None:
    """Bars of every scheme, one column per slice, for the metric that the reader selects.

    Args:
        measured: all numbers.
        data: facts about the data.
        times: of training, by scheme.
    """
    sizes = {"cold": data.get("never_seen", 0)}
    sizes |= (data.get("slices") or {}).get("sizes") or {}
    panels = {}
    for title, columns in _choices(measured).items():
        known = [column for column in columns if measured.known(column.metric, column.slice)]
        if known:
            panels[title] = _panel(measured, known, sizes, times)
    if not panels:
        return None
    chosen = "recall@10" if "recall@10" in panels else next(iter(panels))
    alt = (
        f"Bars of the {measured.yardstick.name} of {len(measured.with_popular)} schemes by "
        "slice of the labels, with their numbers."
    )
    pale = any(look.family == "exact" for look in looks(measured.schemes).values())
    note = "In percent. " if measured.yardstick is RECALL else "In percent; lower is better. "
    note += "Pale bars use all labels. " * pale
    note += COLD if measured.known(measured.yardstick.metric, "cold") else ""
    return Figure("slices", alt, panels, chosen, note)


def _choices(measured: Measured) -> dict[str, list[Column]]:
    if measured.yardstick is RECALL:
        return {
            metric: [Column(name.capitalize(), metric, name) for name in SLICES]
            for metric in RECALLS
        }
    metric = measured.yardstick.metric
    slices = [Column(name.capitalize(), metric, name) for name in SLICES[:-1]]
    means = [Column("Balanced", metric, "full")]
    return {"error": [*slices, *means, Column("Prior-weighted", "class-weighted-error", "full")]}


def _panel(
    measured: Measured, columns: Sequence[Column], sizes: Mapping[str, int], times: Times
) -> list[Bars]:
    means = {
        column: {
            name: measured.of(name, column.metric, column.slice) for name in measured.with_popular
        }
        for column in columns
    }
    schemes = [n for n in measured.with_popular if any(by[n].known for by in means.values())]
    ends = [end for by in means.values() for mean in by.values() for end in (mean.value, mean.high)]
    longest = min(max((end for end in ends if math.isfinite(end)), default=1.0), 1.0) or 1.0
    drawn = []
    for column, by_scheme in means.items():
        digits = digits_of(max((m.value for m in by_scheme.values() if m.known), default=0.0))
        bars = []
        for name in schemes:
            mean = by_scheme[name]
            text = f"{100 * mean.value:.{digits}f}" if mean.known else "–"
            ends = (mean.value, max(mean.low, 0.0), min(mean.high, 1.0))
            shares = (end / longest for end in ends)
            bars.append(Bar(name, text, _tip(measured, column, name, mean), *shares))
        size = f"{sizes[column.slice]:,} labels" if column.slice in sizes else ""
        drawn.append(Bars(column.title, size, bars))
    return [*drawn, _times(schemes, times)] if times else drawn


def _tip(measured: Measured, column: Column, scheme: str, mean: SeedMean) -> str:
    reference = Reference.of(measured)
    tip = f"{scheme}\n{column.title} {measured.yardstick.name} {with_error(mean)}"
    if scheme in (POPULAR, reference.scheme) or not mean.known:
        return tip
    change = reference.difference(scheme, column.metric, column.slice)
    return f"{tip}\n{points(change.value)} points against {reference.name}"


def _times(schemes: Sequence[str], times: Times) -> Bars:
    longest = max(time["training_seconds"] for time in times.values()) or 1.0
    bars = []
    for name in schemes:
        if name not in times:
            bars.append(Bar(name, "–", ""))
            continue
        seconds = times[name]["training_seconds"]
        step = duration(times[name]["step_seconds"])
        tip = f"{name}\ntraining {duration(seconds)}\n{step} per step"
        bars.append(Bar(name, duration(seconds), tip, seconds / longest))
    return Bars("Training", "time", bars)
