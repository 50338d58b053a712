"""Learning curves."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from headtail.comparison.results import Comparison
from headtail.report.figure import SHARES, Figure, axes, axis, panel_title, plain
from headtail.report.look import Look, looks
from headtail.report.seed_mean import SeedMean, percent

Curve = list[tuple[float, SeedMean]]
"""Epochs, and for each the mean over the seeds that reached it."""


def learning_curves(comparison: Comparison) -> Figure | None:
    """Training loss and a validation metric by epoch, mean over seeds."""
    curves = _curves(comparison)
    order = list(dict.fromkeys([*comparison.schemes, *(scheme for _, _, scheme in curves)]))
    look = looks(order)
    losses = any(split == "train" for split, _, _ in curves)
    metrics = list(dict.fromkeys(metric for split, metric, _ in curves if split == "validation"))
    if not curves:
        return None
    chosen = "recall@10" if "recall@10" in metrics else metrics[0] if metrics else ""
    traces = []
    for key in sorted(curves, key=lambda key: order.index(key[2])):
        split, metric, scheme = key
        panel = "2" if split == "validation" and losses else ""
        trace = _line(key, curves[key], look[scheme], panel)
        trace["showlegend"] = split == "train" or (not losses and metric == chosen)
        if split == "validation":
            trace |= {"meta": metric, "visible": metric == chosen}
        traces.append(trace)
    panels = ["training loss"] * losses + ["validation"] * bool(metrics)
    layout, narrow = _layouts(panels, len({scheme for _, _, scheme in curves}))
    by_choice = {metric: _for_metric(metric, panels) for metric in metrics}
    alt = f"Learning curves by epoch, one line per scheme: {' and '.join(panels)}."
    return Figure("curves", alt, traces, layout, narrow, tuple(metrics), chosen, by_choice)


def _curves(comparison: Comparison) -> dict[tuple[str, str, str], Curve]:
    """(split, metric, scheme): its curve."""
    gathered: dict[tuple[str, str, str], dict[float, dict[int, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in comparison.rows:
        drawn = row.split == "validation" or (row.split == "train" and row.metric == "loss")
        if drawn and row.slice in ("full", "") and math.isfinite(row.value):
            gathered[row.split, row.metric, row.scheme][row.epoch][row.seed] = row.value
    return {
        key: [(epoch, SeedMean.of(by_seed)) for epoch, by_seed in sorted(epochs.items())]
        for key, epochs in gathered.items()
    }


def _line(key: tuple[str, str, str], curve: Curve, look: Look, panel: str) -> dict[str, Any]:
    split, metric, scheme = key
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(scheme),
        "legendgroup": scheme,
        "x": [epoch for epoch, _ in curve],
        "y": [mean.value for _, mean in curve],
        **axes(panel),
        "cliponaxis": False,  # a marker at 100% is shown whole
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"symbol": look.symbol, "color": look.colour, "size": 7, "maxdisplayed": 12},
        "hoverinfo": "text",
        "hovertext": [_hover(scheme, split, metric, epoch, mean) for epoch, mean in curve],
    }


def _layouts(panels: list[str], lines: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Panels next to each other, and on a phone below each other."""
    layout: dict[str, Any] = {
        "height": 460 + 12 * lines,
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -0.16,
            "yanchor": "top",
            "groupclick": "togglegroup",
        },
        "margin": {"l": 48, "r": 16, "t": 34, "b": 40},
        "annotations": _titles(panels),
    }
    narrow: dict[str, Any] = {
        "height": 360 * len(panels) + 26 * lines,
        "legend": {"y": -0.07, "font": {"size": 11}},
    }
    across = (1 + 0.1) / len(panels)
    down = (1 + 0.16) / len(panels)
    for place in range(len(panels)):
        number = "2" if place else ""
        start = place * across
        top = 1 - place * down
        layout[f"xaxis{number}"] = axis(
            "epoch", anchor=f"y{number}", domain=[start, min(start + across - 0.1, 1)]
        )
        layout[f"yaxis{number}"] = axis(anchor=f"x{number}")
        narrow[f"xaxis{number}"] = {"domain": [0, 1]}
        narrow[f"yaxis{number}"] = {"domain": [max(top - down + 0.16, 0), top]}
    return layout, narrow


def _for_metric(metric: str, panels: list[str]) -> dict[str, Any]:
    titles = _titles([*panels[:-1], f"validation {metric}"])
    numbers = {"tickformat": ""} if metric.endswith("loss") else SHARES
    return {"annotations": titles, "yaxis2" if len(panels) == 2 else "yaxis": numbers}


def _titles(panels: list[str]) -> list[dict[str, Any]]:
    return [panel_title(name, "2" if place else "") for place, name in enumerate(panels)]


def _hover(scheme: str, split: str, metric: str, epoch: float, mean: SeedMean) -> str:
    value = f"{mean.value:.3f}" if metric.endswith("loss") else percent(mean.value)
    seeds = f"<br>mean of {mean.seeds} seeds" if mean.seeds > 1 else ""
    return f"<b>{plain(scheme)}</b><br>epoch {epoch:g}: {split} {plain(metric)} {value}{seeds}"
