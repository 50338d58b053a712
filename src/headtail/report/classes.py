"""The error of every class, against its rank."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

from headtail.comparison.results import ClassError, Comparison
from headtail.report.charts import shaded
from headtail.report.figure import LAYOUT, Figure, axis, plain
from headtail.report.findings import percent
from headtail.report.look import Look, families, looks

PARTS = 20
"""A line is smoothed over this share of the ranks: a class has so few test points that its own
error says little.
"""


def class_curves(comparison: Comparison) -> Figure | None:
    """The error of the class of each rank, the mean over seeds; the reader picks the sampler."""
    errors = _by_scheme(comparison.classes)
    schemes = [name for name in dict.fromkeys([*comparison.schemes, *errors]) if name in errors]
    ranked = _ranked(comparison.classes)
    if len(ranked) < 2:
        return None
    # odd, so that it has a middle
    window = max(1, len(ranked) // PARTS) | 1
    look = looks(schemes)
    panels = families(schemes)
    chosen = next((title for title in panels if "within-batch" in title), next(iter(panels)))
    traces = [
        _line(
            name,
            [errors[name].get(label, math.nan) for label, _ in ranked],
            ranked,
            window,
            look[name],
        )
        | {"meta": title, "visible": title == chosen}
        for title, names in panels.items()
        for name in names
    ]
    shapes, notes = shaded(comparison.data.get("slices") or {}, len(ranked), log=False)
    layout = {
        "height": 450 + 10 * max(map(len, panels.values())),
        "margin": LAYOUT["margin"] | {"t": 48},
        "shapes": shapes,
        # above: errors reach up to 100%
        "annotations": [note | {"yanchor": "bottom"} for note in notes],
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"},
        "xaxis": axis("rank of the class", range=[0.5, len(ranked) + 0.5], showgrid=False),
        "yaxis": axis("error", tickformat=".0%", range=[0, 1]),
    }
    alt = f"The error of each of {len(ranked):,} classes against its rank, a line a scheme."
    note = f" Lines are means over {window} neighbouring ranks." if window > 1 else ""
    return Figure(
        "classes",
        alt,
        traces,
        layout,
        {"legend": {"font": {"size": 11}}},
        tuple(panels),
        chosen,
        note=note,
    )


def _by_scheme(rows: list[ClassError]) -> dict[str, dict[int, float]]:
    """Scheme, label: its error, the mean over seeds."""
    gathered: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if math.isfinite(row.error):
            gathered[row.scheme][row.label].append(row.error)
    return {
        scheme: {label: statistics.fmean(found) for label, found in labels.items()}
        for scheme, labels in gathered.items()
    }


def _ranked(rows: list[ClassError]) -> list[tuple[int, ClassError]]:
    """Labels from the most frequent to the rarest, each with one of its rows."""
    one_each = {row.label: row for row in rows}
    return sorted(one_each.items(), key=lambda pair: (-pair[1].train, pair[0]))


def _line(
    scheme: str, errors: list[float], ranked: list[tuple[int, ClassError]], window: int, look: Look
) -> dict[str, Any]:
    texts = [
        f"<b>{plain(scheme)}</b><br>{plain(row.name or f'label {label}')}, rank {rank:,}, "
        f"{row.train:,} examples<br>error "
        f"{percent(error)}"
        for rank, ((label, row), error) in enumerate(zip(ranked, errors, strict=True), start=1)
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(ranked) <= PARTS else "lines",
        "name": plain(scheme),
        "x": list(range(1, len(ranked) + 1)),
        "y": smoothed(errors, window),
        "cliponaxis": False,  # a marker at 100% is shown whole
        "line": {
            "color": look.colour,
            "dash": "longdashdot" if look.symbol.endswith(("open", "dot")) else look.dash,
            "width": 2,
        },
        "marker": {"symbol": look.symbol, "color": look.colour, "size": 7},
        "hoverinfo": "text",
        "hovertext": texts,
    }


def smoothed(values: list[float], window: int) -> list[float]:
    """The mean over `window` neighbours, fewer at the ends and where some are not known.

    >>> smoothed([0.0, 1.0, 0.5, float("nan")], window=3)
    [0.5, 0.5, 0.75, 0.5]
    """
    half = window // 2
    found = []
    for place in range(len(values)):
        near = [
            value
            for value in values[max(0, place - half) : place + half + 1]
            if math.isfinite(value)
        ]
        found.append(statistics.fmean(near) if near else math.nan)
    return found
