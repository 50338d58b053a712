"""How often the label of each rank occurs, and the slices that ranks belong to."""

from __future__ import annotations

from typing import Any

from headtail.core.slices import NAMES
from headtail.report.chart import Figure, Frame, Scale, element, path, sized, strips, svg, words

MOST_TIPS = 60


def rank_frequency(data: dict[str, Any]) -> Figure | None:
    """How often the label of each rank occurs, both on a logarithmic scale."""
    curve = [(rank, count) for rank, count in data.get("curve") or [] if rank > 0 and count > 0]
    if not curve:
        return None
    counts = [count for _, count in curve]
    x = Scale(1, max(curve[-1][0], 2), log=True)
    y = Scale(min(counts) / 1.3, max(counts) * 2.6, log=True)
    shown = curve[:: max(1, len(curve) // MOST_TIPS)]
    tips = [(rank, f"label of rank {rank:,}\n{count:,} training examples") for rank, count in shown]

    def draw(width: float) -> str:
        frame = Frame(width, 360, x, y)
        parts = [frame.axes("rank of the label", "training examples")]
        parts.append(shaded(frame, data.get("slices") or {}))
        parts.append(path(map(frame.pixel, curve), "--blue", ""))
        return svg(width, frame.height, [*parts, strips(frame, tips)])

    alt = (
        f"Training examples against rank, on logarithmic scales: from {counts[0]:,} for the most "
        f"frequent label to {counts[-1]:,} for the label of rank {curve[-1][0]:,}."
    )
    return Figure("rank-frequency", alt, {"": sized(draw)})


def shaded(frame: Frame, slices: dict[str, Any]) -> str:
    """Boxes behind the ranks of each slice, with their names at the top."""
    drawn = ""
    first = 1
    _, _, top, _ = frame.margin
    for name in NAMES:
        last = (slices.get("last_rank") or {}).get(name)
        if not last or last < first:  # the slice is empty
            continue
        start = frame.px(max(first - 0.5, frame.x.low))
        end = frame.px(max(min(last + 0.5, frame.x.high), first))
        style = f"fill:var(--{name})"
        width, height = end - start, frame.inner[1]
        drawn += element("rect", x=start, y=top, width=width, height=height, style=style)
        if end - start > 36:
            middle = (start + end) / 2
            drawn += words(name.capitalize(), middle, top + 16, anchor="middle", class_="slice")
            size = (slices.get("sizes") or {}).get(name)
            text = "" if size is None else f"{size:,}"
            drawn += words(text, middle, top + 32, anchor="middle")
        first = last + 1
    return drawn
