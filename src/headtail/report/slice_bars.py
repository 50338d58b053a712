"""Recall or error by slice, as bars with their numbers, and the time of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from headtail.comparison.results import POPULAR
from headtail.report.chart import Figure, element
from headtail.report.look import Look, looks
from headtail.report.measured import RECALL, SLICES, Measured, Reference
from headtail.report.seed_mean import digits_of, duration, points, with_error

RECALLS = ("recall@1", "recall@10", "recall@50")


class Column(NamedTuple):
    """Bars below each other: a metric on a slice."""

    title: str
    metric: str
    slice: str


def slice_bars(
    measured: Measured, data: Mapping[str, Any], times: Mapping[str, Mapping[str, float]]
) -> Figure | None:
    """Bars of every scheme, one column per slice, for the metric that the reader selects.

    Args:
        measured: all numbers.
        data: facts about the data.
        times: of training, by scheme.
    """
    sizes = (data.get("slices") or {}).get("sizes") or {}
    panels = {}
    for title, columns in _choices(measured).items():
        known = [column for column in columns if measured.known(column.metric, column.slice)]
        if known:
            panels[title] = _panel(measured, known, sizes, times)
    if not panels:
        return None
    chosen = "recall@10" if "recall@10" in panels else next(iter(panels))
    alt = (
        f"Bars of the {measured.yardstick.name} of {len(measured.with_popular)} schemes on head, "
        "torso and tail labels, with their numbers."
    )
    pale = any(look.family == "exact" for look in looks(measured.schemes).values())
    note = "In percent. " if measured.yardstick is RECALL else "In percent; lower is better. "
    return Figure("slices", alt, panels, chosen, note + ("Pale bars use all labels. " * pale))


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
    measured: Measured,
    columns: list[Column],
    sizes: Mapping[str, int],
    times: Mapping[str, Mapping[str, float]],
) -> str:
    schemes = [
        name
        for name in measured.with_popular
        if any(measured.of(name, metric, slice_).known for _, metric, slice_ in columns)
    ]
    look = looks(schemes)
    names = "".join(element("div", name, class_="scheme name") for name in schemes)
    drawn = f'<div class="names"><h4></h4>{names}</div>'
    most = _most(measured, columns)
    drawn += "".join(_column(measured, column, sizes, look, most) for column in columns)
    if times:
        drawn += _time_column(schemes, times, look)
    style = f"--columns:{len(columns) + bool(times)};--rows:{len(schemes) + 1}"
    return f'<div class="bars" style="{style}">{drawn}</div>'


def _most(measured: Measured, columns: list[Column]) -> float:
    """Where bars and error bars of all columns end."""
    means = [
        measured.of(name, column.metric, column.slice)
        for name in measured.with_popular
        for column in columns
    ]
    ends = [end for mean in means for end in (mean.value, mean.high) if math.isfinite(end)]
    return min(max(ends, default=1.0), 1.0) or 1.0


def _column(
    measured: Measured,
    column: Column,
    sizes: Mapping[str, int],
    look: Mapping[str, Look],
    most: float,
) -> str:
    reference = Reference.of(measured)
    title, metric, slice_ = column
    means = {name: measured.of(name, metric, slice_) for name in look}
    digits = digits_of(max((m.value for m in means.values() if m.known), default=0.0))
    rows = ""
    for name, mean in means.items():
        tip = f"{name}\n{title} {measured.yardstick.name} {with_error(mean)}"
        if name not in (POPULAR, reference.scheme) and mean.known:
            change = reference.difference(name, metric, slice_)
            tip += f"\n{points(change.value)} points against {reference.name}"
        text = f"{100 * mean.value:.{digits}f}" if mean.known else "–"
        bar = (mean.value / most, mean.low / most, min(mean.high, 1.0) / most)
        rows += _bar(name, text, tip, look[name], bar)
    size = f"{sizes[slice_]:,} labels" if slice_ in sizes else ""
    return f"<div>{_heading(title, size)}{rows}</div>"


def _time_column(
    schemes: list[str], times: Mapping[str, Mapping[str, float]], look: Mapping[str, Look]
) -> str:
    most = max(time["training_seconds"] for time in times.values()) or 1.0
    rows = ""
    for name in schemes:
        time = times.get(name)
        if time is None:
            rows += _bar(name, "–", "", look[name], (math.nan, math.nan, math.nan))
            continue
        text = duration(time["training_seconds"])
        tip = f"{name}\ntraining {text}\n{duration(time['step_seconds'])} per step"
        share = time["training_seconds"] / most
        rows += _bar(name, text, tip, look[name], (share, math.nan, math.nan))
    return f'<div class="times">{_heading("Training", "time of all steps")}{rows}</div>'


def _heading(title: str, detail: str) -> str:
    return element("h4", f"{title} ", element("small", detail) if detail else "")


def _bar(scheme: str, text: str, tip: str, look: Look, bar: tuple[float, float, float]) -> str:
    """One row: a bar and its error bar as shares of the track, and the number."""
    value, low, high = (100 * end for end in bar)
    pale = ";opacity:.5" if look.family == "exact" else ""
    track = ""
    if math.isfinite(value):
        style = f"width:{max(value, 0.0):.2f}%;background:var({look.colour}){pale}"
        track = element("i", style=style)
    if math.isfinite(low + high):
        low = max(low, 0.0)
        track += element("u", style=f"left:{low:.2f}%;width:{max(high - low, 0.0):.2f}%")
    name = element("span", scheme, class_="scheme name")
    number = element("span", text, class_="value")
    inside = name + element("span", inside=track, class_="track") + number
    return element("div", inside=inside, class_="row", data_tip=tip)
