"""Points with names and error bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headtail.report.figure import LAYOUT, plain
from headtail.report.look import Look
from headtail.report.measured import Estimate
from headtail.report.place import STANDOFF, Canvas, Place, legible, place

# Drawing areas in pixels: the page is never wider, and a phone about this narrow.
WIDE = (800.0, 430.0)
NARROW = (290.0, 400.0)
LINE = 20
BELOW = 58
"""Pixels that a line of the legend takes, and from the chart down to the legend."""


def named_scatter(
    found: dict[str, tuple[Estimate, Estimate]],
    texts: dict[str, str],
    look: dict[str, Look],
    also: Sequence[str] = (),
    *,
    shares: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """A point a scheme: traces, layout and what is different on a phone. Names that find no room
    stand in a legend.

    Args:
        found: scheme: its two numbers.
        texts: scheme: what stands in its tooltip, as plotly's markup.
        look: scheme: how it looks.
        also: what else stands in the legend.
        shares: whether the numbers lie between 0 and 1: then axes and error bars do too.
    """
    if shares:
        found = {name: (_share(x), _share(y)) for name, (x, y) in found.items()}
    ranges = [_range([pair[side] for pair in found.values()], shares) for side in (0, 1)]
    bars = [
        (x.low, y.value, x.high, y.value)
        for x, y in found.values()
        if math.isfinite(x.low + x.high)
    ]
    bars += [
        (x.value, y.low, x.value, y.high)
        for x, y in found.values()
        if math.isfinite(y.low + y.high)
    ]
    points = {name: (x.value, y.value) for name, (x, y) in found.items()}
    named = list(legible(points, Canvas(*WIDE, *ranges, font=12.0), bars))
    listed = [name for name in found if name not in named]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(name),
            "showlegend": name in listed,
            "x": [x.value],
            "y": [y.value],
            "error_x": _error(x, look[name]),
            "error_y": _error(y, look[name]),
            "marker": {
                "color": look[name].colour,
                "symbol": look[name].symbol,
                "size": 12,
                "line": {"width": 1.5, "color": look[name].colour},
            },
            "cliponaxis": False,  # a marker at the end of an axis is shown whole
            "hoverinfo": "text",
            "hovertext": [texts[name]],
        }
        for name, (x, y) in found.items()
    ]
    layouts = []
    for (width, height), font in ((WIDE, 12.0), (NARROW, 10.0)):
        where = place(points, Canvas(width, height, *ranges, font=font), bars, named)
        notes = [_note(name, *found[name], where[name], font) for name in named]
        below = LINE * _rows([*also, *listed], width)
        legend = {
            "orientation": "h",
            "x": 0,
            "y": -BELOW / height,
            "yanchor": "top",
            "font": {"size": font},
        }
        legend |= {"itemclick": False, "itemdoubleclick": False}
        sizes = {"height": height + 90 + below, "margin": LAYOUT["margin"] | {"b": 62 + below}}
        layouts.append({"annotations": notes, "showlegend": bool(below), "legend": legend, **sizes})
    wide, narrow = layouts
    return (
        traces,
        wide | {"xaxis": {"range": list(ranges[0])}, "yaxis": {"range": list(ranges[1])}},
        narrow,
    )


def _rows(names: Sequence[str], width: float) -> int:
    """Lines that a legend takes: plotly gives all names the room of the longest."""
    if not names:
        return 0
    columns = max(1, int(width // (46 + 7 * max(map(len, names)))))
    return math.ceil(len(names) / columns)


def share_format(span: list[float]) -> str:
    """Whole percents on an axis, unless it is so short that they would repeat."""
    return ".0%" if span[1] - span[0] > 0.06 else ".1%"


def _share(one: Estimate) -> Estimate:
    """With an error bar that ends where shares do."""
    return (
        replace(one, low=max(one.low, 0.0), high=min(one.high, 1.0))
        if math.isfinite(one.low + one.high)
        else one
    )


def _range(found: list[Estimate], shares: bool) -> tuple[float, float]:
    ends = [end for one in found for end in (one.value, one.low, one.high) if math.isfinite(end)]
    low = min(ends)
    high = max(ends)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return (max(low - room, 0.0), min(high + room, 1.0)) if shares else (low - room, high + room)


def _error(one: Estimate, look: Look) -> dict[str, Any]:
    if not math.isfinite(one.low + one.high):
        return {"visible": False}
    ends = {"array": [one.high - one.value], "arrayminus": [one.value - one.low]}
    return {
        "type": "data",
        "symmetric": False,
        **ends,
        "color": look.colour,
        "thickness": 1,
        "width": 0,
    }


def _note(name: str, x: Estimate, y: Estimate, where: Place, font: float) -> dict[str, Any]:
    note = {
        "x": x.value,
        "y": y.value,
        "text": plain(name),
        "font": {"size": font, "color": "--ink"},
    }
    if where.near:
        return note | {"showarrow": False, "xshift": where.dx, "yshift": -where.dy}
    line = {
        "showarrow": True,
        "arrowhead": 0,
        "arrowwidth": 0.8,
        "arrowcolor": "--muted",
        "standoff": STANDOFF,
    }
    return note | line | {"ax": where.dx, "ay": where.dy, "borderpad": 0}
