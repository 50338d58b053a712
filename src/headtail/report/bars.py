"""Recall@k by slice, as bars."""

from __future__ import annotations

from typing import Any

from headtail.comparison.results import POPULAR
from headtail.report.figure import SHARES, Figure, axis, panel_title, plain
from headtail.report.findings import points, with_error
from headtail.report.look import looks
from headtail.report.measured import SLICES, Estimate, Measured, Reference

RECALLS = ("recall@1", "recall@10", "recall@50")
GAP = 0.075
"""Between panels that stand side by side, as a share of the chart."""
BAR = 20
BETWEEN = 58
"""On a phone: pixels a bar takes, and pixels between panels, which hold an axis and a title."""


def recall_bars(measured: Measured) -> Figure | None:
    """Recall@k of every scheme, a panel a slice, for the k that the reader picks."""
    schemes = [*measured.schemes, *([POPULAR] if measured.popular else [])]
    slices = [name for name in SLICES if any(measured.known(metric, name) for metric in RECALLS)]
    metrics = [metric for metric in RECALLS if any(measured.known(metric, name) for name in SLICES)]
    if not slices:
        return None
    chosen = "recall@10" if "recall@10" in metrics else metrics[0]
    layout: dict[str, Any] = {
        "bargap": 0.28,
        "height": 26 * len(schemes) + 90,
        "margin": {"l": 8, "r": 16, "t": 34, "b": 36},
    }
    inner = len(slices) * BAR * len(schemes) + (len(slices) - 1) * BETWEEN
    narrow: dict[str, Any] = {"height": inner + 70}
    traces = []
    titles = []
    for place, slice_ in enumerate(slices):
        number = str(place + 1) if place else ""
        titles.append(panel_title(slice_, number))
        traces += [
            _bars(measured, schemes, metric, slice_, number) | {"visible": metric == chosen}
            for metric in metrics
        ]
        size = (1 + GAP) / len(slices)
        start = place * size
        top = 1 - place * (BAR * len(schemes) + BETWEEN) / inner
        numbers = axis(
            **SHARES, rangemode="nonnegative", nticks=4, domain=[start, min(start + size - GAP, 1)]
        )
        names = axis(
            tickvals=list(range(len(schemes))),
            range=[len(schemes) - 0.4, -0.6],
            showgrid=False,
            ticks="",
        )
        layout[f"xaxis{number}"] = (
            numbers | {"anchor": f"y{number}"} | ({"matches": "x"} if place else {})
        )
        layout[f"yaxis{number}"] = names | {
            "anchor": f"x{number}",
            "ticktext": _ticks(schemes, 34),
            "showticklabels": not place,
        }
        stacked = {
            "domain": [max(top - BAR * len(schemes) / inner, 0), top],
            "ticktext": _ticks(schemes, 24),
            "tickfont": {"size": 10.5},
        }
        narrow |= {
            f"xaxis{number}": {"domain": [0, 1]},
            f"yaxis{number}": stacked | {"showticklabels": True},
        }
    alt = (
        f"Bars of Recall@k for {len(schemes)} schemes on {', '.join(slices)} labels; section 7 has "
        "the numbers."
    )
    return Figure(
        "recall", alt, traces, layout | {"annotations": titles}, narrow, tuple(metrics), chosen
    )


def _bars(
    measured: Measured, schemes: list[str], metric: str, slice_: str, number: str
) -> dict[str, Any]:
    found = [measured.of(name, metric, slice_) for name in schemes]
    look = looks(schemes)
    reference = Reference.of(measured)
    return {
        "type": "bar",
        "orientation": "h",
        "meta": metric,
        "x": [one.value for one in found],
        "y": list(range(len(schemes))),
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
        "error_x": _error(found),
        "marker": {"color": [look[name].colour for name in schemes], "line": {"width": 0}},
        "hoverinfo": "text",
        "hovertext": [
            _hover(name, metric, slice_, one, reference)
            for name, one in zip(schemes, found, strict=True)
        ],
    }


def _error(found: list[Estimate]) -> dict[str, Any]:
    ends = {
        "array": [one.high - one.value for one in found],
        "arrayminus": [one.value - one.low for one in found],
    }
    return {
        "type": "data",
        "symmetric": False,
        **ends,
        "color": "--ink",
        "thickness": 1,
        "width": 2.5,
    }


def _hover(scheme: str, metric: str, slice_: str, found: Estimate, reference: Reference) -> str:
    text = (
        f"<b>{plain(scheme)}</b><br>{slice_.capitalize()} {metric.capitalize()} {with_error(found)}"
    )
    if scheme in (POPULAR, reference.scheme) or not found.known:
        return text
    change = reference.difference(scheme, metric, slice_)
    return f"{text}<br>{points(change.value)} points against {plain(reference.name)}"


def _ticks(schemes: list[str], length: int) -> list[str]:
    return [
        plain(name if len(name) <= length else name[: length - 1] + "…") + " " for name in schemes
    ]
