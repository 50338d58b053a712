"""How often the label of each rank occurs, and the slices that ranks belong to."""

from __future__ import annotations

import math
from typing import Any

from headtail.core.slices import NAMES
from headtail.report.figure import Figure, axis


def rank_frequency(data: dict[str, Any]) -> Figure | None:
    """How often the label of each rank occurs, both on a logarithmic scale."""
    curve = [(rank, count) for rank, count in data.get("curve") or [] if rank > 0 and count > 0]
    if not curve:
        return None
    ranks = [rank for rank, _ in curve]
    counts = [count for _, count in curve]
    shapes, notes = shaded(data.get("slices") or {}, ranks[-1], log=True)
    trace = {
        "type": "scatter",
        "mode": "lines",
        "x": ranks,
        "y": counts,
        "line": {"color": "--blue", "width": 2.5},
        "hoverinfo": "text",
        "hovertext": [
            f"label of rank {rank:,}<br>{count:,} training examples" for rank, count in curve
        ],
    }
    log = {"type": "log", "dtick": 1, "tickformat": "~s"}
    span = [math.log10(min(counts)) - 0.1, math.log10(max(counts)) + 0.35]
    layout = {
        "height": 380,
        "shapes": shapes,
        "annotations": notes,
        "xaxis": axis("rank of the label", **log),
        "yaxis": axis("training examples", **log, range=span),
    }
    alt = (
        f"Training examples against rank, on logarithmic scales: from {counts[0]:,} for the most "
        f"frequent label to {counts[-1]:,} for the label of rank {ranks[-1]:,}."
    )
    return Figure("rank-frequency", alt, [trace], layout)


def shaded(
    slices: dict[str, Any], last_rank: float, *, log: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Boxes behind the ranks of each slice, and their names.

    Args:
        slices: of the data.
        last_rank: where the axis ends.
        log: whether the axis is logarithmic.
    """
    boxes = []
    names = []
    first = 1
    for name in NAMES:
        last = (slices.get("last_rank") or {}).get(name)
        if not last or last < first:  # the slice is empty
            continue
        start = max(first - 0.5, 1)
        end = max(min(last + 0.5, last_rank), first)
        boxes.append(_box(start, end) | {"fillcolor": f"--{name}"})
        size = (slices.get("sizes") or {}).get(name)
        # On a logarithmic axis, plotly places texts by powers of ten, but boxes by their values.
        middle = math.log10(start * end) / 2 if log else (start + end) / 2
        names.append(_name(name, size, middle))
        first = last + 1
    return boxes, names


def _box(start: float, end: float) -> dict[str, Any]:
    across = {"type": "rect", "x0": start, "x1": end}
    down = {"yref": "paper", "y0": 0, "y1": 1}
    return {**across, **down, "line": {"width": 0}, "layer": "below"}


def _name(name: str, size: int | None, middle: float) -> dict[str, Any]:
    text = f"<b>{name.capitalize()}</b>" + ("" if size is None else f"<br>{size:,}")
    place = {"x": middle, "y": 1, "yref": "paper", "yanchor": "top"}
    return {**place, "text": text, "showarrow": False}
