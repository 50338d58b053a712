"""Recall@k by slice, as bars."""

from __future__ import annotations

from typing import Any

from headtail.comparison.results import POPULAR
from headtail.report.figure import SHARES, Figure, axes, axis, error_bar, panel_title, plain
from headtail.report.look import looks
from headtail.report.measured import SLICES, Measured, Reference
from headtail.report.seed_mean import SeedMean, points, with_error

RECALLS = ("recall@1", "recall@10", "recall@50")
GAP = 0.075
"""Between panels that are next to each other, as a share of the chart."""
BAR_PIXELS = 20
GAP_PIXELS = 58
"""On a phone: the height of a bar, and between panels, for an axis and a title."""


def recall_bars(measured: Measured) -> Figure | None:
    """Recall@k of every scheme, one panel per slice, for the k that the reader selects."""
    schemes = measured.with_popular
    slices = [name for name in SLICES if any(measured.known(metric, name) for metric in RECALLS)]
    metrics = [metric for metric in RECALLS if any(measured.known(metric, name) for name in SLICES)]
    if not slices:
        return None
    chosen = "recall@10" if "recall@10" in metrics else metrics[0]
    inner = len(slices) * BAR_PIXELS * len(schemes) + (len(slices) - 1) * GAP_PIXELS
    layout: dict[str, Any] = {
        "bargap": 0.28,
        "height": 26 * len(schemes) + 90,
        "margin": {"l": 8, "r": 16, "t": 34, "b": 36},
        "annotations": [panel_title(name, _number(i)) for i, name in enumerate(slices)],
    }
    narrow: dict[str, Any] = {"height": inner + 70}
    traces = []
    for place, slice_ in enumerate(slices):
        for metric in metrics:
            bars = _bars(measured, metric, slice_, _number(place))
            traces.append(bars | {"visible": metric == chosen})
        layout |= _wide_axes(place, len(slices), schemes)
        narrow |= _narrow_axes(place, inner, schemes)
    alt = (
        f"Bars of Recall@k for {len(schemes)} schemes on {', '.join(slices)} labels; section 7 has "
        "the numbers."
    )
    return Figure("recall", alt, traces, layout, narrow, tuple(metrics), chosen)


def _wide_axes(place: int, panels: int, schemes: list[str]) -> dict[str, Any]:
    """Axes of panels next to each other; only the first has names."""
    number = _number(place)
    size = (1 + GAP) / panels
    start = place * size
    end = min(start + size - GAP, 1)
    shares = axis(**SHARES, rangemode="nonnegative", nticks=4, domain=[start, end])
    shares |= {"anchor": f"y{number}"} | ({"matches": "x"} if place else {})
    names = axis(
        tickvals=list(range(len(schemes))),
        range=[len(schemes) - 0.4, -0.6],
        showgrid=False,
        ticks="",
        anchor=f"x{number}",
        ticktext=_ticks(schemes, 34),
        showticklabels=not place,
    )
    return {f"xaxis{number}": shares, f"yaxis{number}": names}


def _narrow_axes(place: int, inner: float, schemes: list[str]) -> dict[str, Any]:
    """Axes of panels below each other, on a phone."""
    height = BAR_PIXELS * len(schemes)
    top = 1 - place * (height + GAP_PIXELS) / inner
    names = {
        "domain": [max(top - height / inner, 0), top],
        "ticktext": _ticks(schemes, 24),
        "tickfont": {"size": 10.5},
        "showticklabels": True,
    }
    return {f"xaxis{_number(place)}": {"domain": [0, 1]}, f"yaxis{_number(place)}": names}


def _bars(measured: Measured, metric: str, slice_: str, number: str) -> dict[str, Any]:
    schemes = measured.with_popular
    means = [measured.of(name, metric, slice_) for name in schemes]
    look = looks(schemes)
    reference = Reference.of(measured)
    return {
        "type": "bar",
        "orientation": "h",
        "meta": metric,
        "x": [mean.value for mean in means],
        "y": list(range(len(schemes))),
        **axes(number),
        "error_x": error_bar(means, "--ink", 2.5),
        "marker": {"color": [look[name].colour for name in schemes], "line": {"width": 0}},
        "hoverinfo": "text",
        "hovertext": [
            _hover(name, metric, slice_, mean, reference)
            for name, mean in zip(schemes, means, strict=True)
        ],
    }


def _hover(scheme: str, metric: str, slice_: str, mean: SeedMean, reference: Reference) -> str:
    title = f"{slice_.capitalize()} {metric.capitalize()}"
    text = f"<b>{plain(scheme)}</b><br>{title} {with_error(mean)}"
    if scheme in (POPULAR, reference.scheme) or not mean.known:
        return text
    change = reference.difference(scheme, metric, slice_)
    return f"{text}<br>{points(change.value)} points against {plain(reference.name)}"


def _ticks(schemes: list[str], length: int) -> list[str]:
    short = (name if len(name) <= length else name[: length - 1] + "…" for name in schemes)
    return [plain(name) + " " for name in short]


def _number(place: int) -> str:
    """The suffix of a panel's axes in plotly."""
    return str(place + 1) if place else ""
