"""Points with names and error bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headtail.report.figure import LAYOUT, error_bar, plain
from headtail.report.look import Look
from headtail.report.name_places import STANDOFF, Box, Canvas, Place, legible, place
from headtail.report.seed_mean import SeedMean

# Drawing areas in pixels: the page is never wider, and a phone is about this narrow.
WIDE = (800.0, 430.0)
NARROW = (290.0, 400.0)
LINE_PIXELS = 20
LEGEND_PIXELS = 58
"""The height of a line of the legend, and from the chart down to the legend."""

Means = dict[str, tuple[SeedMean, SeedMean]]
"""Scheme: its two numbers."""


def named_scatter(
    means: Means,
    texts: dict[str, str],
    look: dict[str, Look],
    also: Sequence[str] = (),
    *,
    shares: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """One point per scheme: traces, layout, and changes of the layout on a phone. Names that do not
    fit next to their points are in a legend.

    Args:
        means: scheme: its two numbers.
        texts: scheme: its tooltip, as plotly's markup.
        look: scheme: how it looks.
        also: other entries of the legend.
        shares: whether the numbers are shares: axes and error bars then end at 0 and 1.
    """
    if shares:
        means = {name: (_clipped(x), _clipped(y)) for name, (x, y) in means.items()}
    x_range = _range([x for x, _ in means.values()], shares)
    y_range = _range([y for _, y in means.values()], shares)
    wide = Canvas(*WIDE, x_range, y_range, font=12.0)
    narrow = Canvas(*NARROW, x_range, y_range, font=10.0)
    points = {name: (x.value, y.value) for name, (x, y) in means.items()}
    named = list(legible(points, wide, _bars(means)))
    listed = [name for name in means if name not in named]
    traces = [
        _point(name, means[name], texts[name], look[name]) | {"showlegend": name in listed}
        for name in means
    ]
    entries = [*also, *listed]
    layout = _layout(means, named, entries, wide)
    layout |= {"xaxis": {"range": list(x_range)}, "yaxis": {"range": list(y_range)}}
    return traces, layout, _layout(means, named, entries, narrow)


def share_format(span: list[float]) -> str:
    """Whole percents on an axis, unless it is so short that they would repeat."""
    return ".0%" if span[1] - span[0] > 0.06 else ".1%"


def _point(name: str, mean: tuple[SeedMean, SeedMean], text: str, look: Look) -> dict[str, Any]:
    x, y = mean
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": [x.value],
        "y": [y.value],
        "error_x": error_bar([x], look.colour, 0),
        "error_y": error_bar([y], look.colour, 0),
        "marker": {
            "color": look.colour,
            "symbol": look.symbol,
            "size": 12,
            "line": {"width": 1.5, "color": look.colour},
        },
        "cliponaxis": False,  # a marker at the end of an axis is shown whole
        "hoverinfo": "text",
        "hovertext": [text],
    }


def _layout(means: Means, named: list[str], listed: list[str], canvas: Canvas) -> dict[str, Any]:
    """Names next to their points, and a legend for the others."""
    points = {name: (x.value, y.value) for name, (x, y) in means.items()}
    places = place(points, canvas, _bars(means), named)
    below = LINE_PIXELS * _rows(listed, canvas.width)
    return {
        "annotations": [_note(name, points[name], places[name], canvas.font) for name in named],
        "showlegend": bool(below),
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -LEGEND_PIXELS / canvas.height,
            "yanchor": "top",
            "font": {"size": canvas.font},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "height": canvas.height + 90 + below,
        "margin": LAYOUT["margin"] | {"b": 62 + below},
    }


def _bars(means: Means) -> list[Box]:
    """The error bars, which names should not cover."""
    across = [(x.low, y.value, x.high, y.value) for x, y in means.values() if x.has_bar]
    return across + [(x.value, y.low, x.value, y.high) for x, y in means.values() if y.has_bar]


def _rows(names: Sequence[str], width: float) -> int:
    """Lines of a legend: plotly gives all names the width of the longest."""
    if not names:
        return 0
    columns = max(1, int(width // (46 + 7 * max(map(len, names)))))
    return math.ceil(len(names) / columns)


def _clipped(mean: SeedMean) -> SeedMean:
    """With an error bar within 0 and 1."""
    if not mean.has_bar:
        return mean
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0))


def _range(means: list[SeedMean], shares: bool) -> tuple[float, float]:
    ends = [end for mean in means for end in (mean.value, mean.low, mean.high)]
    ends = [end for end in ends if math.isfinite(end)]
    low = min(ends)
    high = max(ends)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return (max(low - room, 0.0), min(high + room, 1.0)) if shares else (low - room, high + room)


def _note(name: str, point: tuple[float, float], where: Place, font: float) -> dict[str, Any]:
    note = {
        "x": point[0],
        "y": point[1],
        "text": plain(name),
        "font": {"size": font, "color": "--ink"},
    }
    if where.near:
        return note | {"showarrow": False, "xshift": where.dx, "yshift": -where.dy}
    leader = {
        "showarrow": True,
        "arrowhead": 0,
        "arrowwidth": 0.8,
        "arrowcolor": "--muted",
        "standoff": STANDOFF,
    }
    return note | leader | {"ax": where.dx, "ay": where.dy, "borderpad": 0}
