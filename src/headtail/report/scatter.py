"""Points with names and error bars."""

from __future__ import annotations

import math
from typing import Any

from headtail.report.figure import plain
from headtail.report.look import Look
from headtail.report.measured import Estimate
from headtail.report.place import Canvas, Place, place

# Drawing areas in pixels: the page is never wider, and a phone about this narrow.
WIDE, NARROW = (800.0, 430.0), (290.0, 400.0)


def named_scatter(
    found: dict[str, tuple[Estimate, Estimate]], texts: dict[str, str], look: dict[str, Look]
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """A point a scheme: traces, layout and what is different on a phone.

    Args:
        found: scheme: its two numbers.
        texts: scheme: what stands in its tooltip, as plotly's markup.
        look: scheme: how it looks.
    """
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(name),
            "showlegend": False,
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
            "hoverinfo": "text",
            "hovertext": [texts[name]],
        }
        for name, (x, y) in found.items()
    ]
    ranges = [_range([pair[side] for pair in found.values()]) for side in (0, 1)]
    bars = [(x.low, y.value, x.high, y.value) for x, y in found.values() if math.isfinite(x.low + x.high)]
    bars += [(x.value, y.low, x.value, y.high) for x, y in found.values() if math.isfinite(y.low + y.high)]
    layouts = []
    for (width, height), font in ((WIDE, 12.0), (NARROW, 10.0)):
        canvas = Canvas(width, height, *ranges, font=font)
        where = place({name: (x.value, y.value) for name, (x, y) in found.items()}, canvas, bars)
        notes = [_note(name, *found[name], where[name], font) for name in found]
        layouts.append({"annotations": notes, "height": height + 90})
    wide, narrow = layouts
    return traces, wide | {"xaxis": {"range": list(ranges[0])}, "yaxis": {"range": list(ranges[1])}}, narrow


def share_format(span: list[float]) -> str:
    """Whole percents on an axis, unless it is so short that they would repeat."""
    return ".0%" if span[1] - span[0] > 0.06 else ".1%"


def _range(found: list[Estimate]) -> tuple[float, float]:
    ends = [end for one in found for end in (one.value, one.low, one.high) if math.isfinite(end)]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _error(one: Estimate, look: Look) -> dict[str, Any]:
    if not math.isfinite(one.low + one.high):
        return {"visible": False}
    ends = {"array": [one.high - one.value], "arrayminus": [one.value - one.low]}
    return {"type": "data", "symmetric": False, **ends, "color": look.colour, "thickness": 1, "width": 0}


def _note(name: str, x: Estimate, y: Estimate, where: Place, font: float) -> dict[str, Any]:
    note = {"x": x.value, "y": y.value, "text": plain(name), "font": {"size": font, "color": "--ink"}}
    if where.near:
        return note | {"showarrow": False, "xshift": where.dx, "yshift": -where.dy}
    line = {"showarrow": True, "arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": "--muted", "standoff": 7}
    return note | line | {"ax": where.dx, "ay": where.dy, "borderpad": 0}
