"""The error of every class, against its rank."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

from headtail.comparison.results import ClassError, Comparison
from headtail.report.figure import LAYOUT, Figure, axis, plain
from headtail.report.look import Look, families, looks
from headtail.report.rank_frequency import shaded
from headtail.report.seed_mean import percent

WINDOWS = 20
"""A line is a moving mean over the ranks divided by this: a class has too few test points for its
own error to mean much.
"""


def class_curves(comparison: Comparison) -> Figure | None:
    """The error of the class of each rank, mean over seeds, for the sampler that the reader
    selects.
    """
    errors = _by_scheme(comparison.classes)
    schemes = [name for name in dict.fromkeys([*comparison.schemes, *errors]) if name in errors]
    ranked = _ranked(comparison.classes)
    if len(ranked) < 2:
        return None
    window = max(1, len(ranked) // WINDOWS) | 1  # odd, so that it has a middle
    look = looks(schemes)
    panels = families(schemes)
    chosen = next((title for title in panels if "within-batch" in title), next(iter(panels)))
    traces = []
    for title, names in panels.items():
        for name in names:
            by_rank = [errors[name].get(row.label, math.nan) for row in ranked]
            line = _line(name, by_rank, ranked, window, look[name])
            traces.append(line | {"meta": title, "visible": title == chosen})
    shapes, notes = shaded(comparison.data.get("slices") or {}, len(ranked), log=False)
    layout = {
        "height": 450 + 10 * max(map(len, panels.values())),
        "margin": LAYOUT["margin"] | {"t": 48},
        "shapes": shapes,
        # Above the chart, because errors reach up to 100%.
        "annotations": [note | {"yanchor": "bottom"} for note in notes],
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"},
        "xaxis": axis("rank of the class", range=[0.5, len(ranked) + 0.5], showgrid=False),
        "yaxis": axis("error", tickformat=".0%", range=[0, 1]),
    }
    narrow = {"legend": {"font": {"size": 11}}}
    alt = f"The error of each of {len(ranked):,} classes against its rank, one line per scheme."
    note = f" Lines are means over {window} neighbouring ranks." if window > 1 else ""
    return Figure("classes", alt, traces, layout, narrow, tuple(panels), chosen, note=note)


def _by_scheme(rows: list[ClassError]) -> dict[str, dict[int, float]]:
    """Scheme: label: its error, mean over seeds."""
    gathered: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if math.isfinite(row.error):
            gathered[row.scheme][row.label].append(row.error)
    return {
        scheme: {label: statistics.fmean(errors) for label, errors in by_label.items()}
        for scheme, by_label in gathered.items()
    }


def _ranked(rows: list[ClassError]) -> list[ClassError]:
    """One row per label, from the most frequent to the rarest."""
    by_label = {row.label: row for row in rows}
    return sorted(by_label.values(), key=lambda row: (-row.train, row.label))


def _line(
    scheme: str, errors: list[float], ranked: list[ClassError], window: int, look: Look
) -> dict[str, Any]:
    texts = [
        f"<b>{plain(scheme)}</b><br>{plain(row.name or f'label {row.label}')}, rank {rank:,}, "
        f"{row.train:,} examples<br>error {percent(error)}"
        for rank, (row, error) in enumerate(zip(ranked, errors, strict=True), start=1)
    ]
    dash = "longdashdot" if look.symbol.endswith(("open", "dot")) else look.dash
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(ranked) <= WINDOWS else "lines",
        "name": plain(scheme),
        "x": list(range(1, len(ranked) + 1)),
        "y": smoothed(errors, window),
        "cliponaxis": False,  # a marker at 100% is shown whole
        "line": {"color": look.colour, "dash": dash, "width": 2},
        "marker": {"symbol": look.symbol, "color": look.colour, "size": 7},
        "hoverinfo": "text",
        "hovertext": texts,
    }


def smoothed(values: list[float], window: int) -> list[float]:
    """The mean over `window` neighbours, fewer at the ends and where some are NaN.

    >>> smoothed([0.0, 1.0, 0.5, float("nan")], window=3)
    [0.5, 0.5, 0.75, 0.5]
    """
    half = window // 2
    means = []
    for i in range(len(values)):
        neighbours = values[max(0, i - half) : i + half + 1]
        known = [value for value in neighbours if math.isfinite(value)]
        means.append(statistics.fmean(known) if known else math.nan)
    return means
