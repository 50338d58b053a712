"""The error of every class, against its rank."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from headtail.comparison.results import ClassError, Comparison
from headtail.report.chart import Figure, Frame, Key, Scale, legend, path, sized, strips, svg
from headtail.report.look import Look, families, looks
from headtail.report.rank_frequency import MOST_TIPS, shaded
from headtail.report.seed_mean import percent

WINDOWS = 20
"""A line is a moving mean over the ranks divided by this: a class has too few test points for its
own error to mean much.
"""
MOST_POINTS = 300
"""Of a line; more would only make the page larger."""


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
    slices = comparison.data.get("slices") or {}
    look = looks(schemes)
    panels = {}
    for title, names in families(schemes).items():
        by_rank = {
            name: [errors[name].get(row.label, math.nan) for row in ranked] for name in names
        }
        curves = {name: smoothed(values, window) for name, values in by_rank.items()}
        tips = _tips(by_rank, ranked)
        keys = [Key(name, look[name].colour, _dash(look[name])) for name in names]

        def draw(width: float, curves: dict = curves, tips: list = tips) -> str:
            frame = Frame(width, 400, Scale(1, len(ranked)), Scale(0, 1, share=True))
            parts = [frame.axes("rank of the class", "error"), shaded(frame, slices)]
            thin = range(0, len(ranked), max(1, len(ranked) // MOST_POINTS))
            for name, values in curves.items():
                at = [frame.pixel((i + 1, values[i])) for i in thin]
                parts.append(path(at, look[name].colour, _dash(look[name])))
            return svg(width, frame.height, [*parts, strips(frame, tips)])

        panels[title] = sized(draw) + legend(keys)
    chosen = next((title for title in panels if "within-batch" in title), next(iter(panels)))
    alt = f"The error of each of {len(ranked):,} classes against its rank, one line per scheme."
    note = f" Lines are means over {window} neighbouring ranks." if window > 1 else ""
    return Figure("classes", alt, panels, chosen, note)


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


def _tips(by_rank: dict[str, list[float]], ranked: list[ClassError]) -> list[tuple[float, str]]:
    """The class of a rank, and the error of each scheme on it."""
    return [
        (
            i + 1,
            f"{ranked[i].name or f'label {ranked[i].label}'}, rank {i + 1:,}, "
            f"{ranked[i].train:,} examples\n"
            + "\n".join(f"{name} {percent(values[i])}" for name, values in by_rank.items()),
        )
        for i in range(0, len(ranked), max(1, math.ceil(len(ranked) / MOST_TIPS)))
    ]


def _dash(look: Look) -> str:
    return "longdashdot" if look.symbol.endswith(("open", "dot")) else look.dash


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
