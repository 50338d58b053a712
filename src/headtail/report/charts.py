"""Charts of the data and of what the schemes did to head and tail."""

from __future__ import annotations

import math
from typing import Any

from headtail.core.slices import NAMES
from headtail.report.figure import Figure, axis, plain
from headtail.report.findings import Agreement, pareto_front, points, with_error
from headtail.report.look import looks
from headtail.report.measured import Estimate, Measured, Reference
from headtail.report.scatter import named_scatter, share_format

_MOVED = {1: "{} minus head Recall@10", -1: "error saved on the {} minus on the head"}
FRONT = "Pareto front: no scheme is better on both"


def rank_frequency(data: dict[str, Any]) -> Figure | None:
    """How often the label of each rank occurs, both on a logarithmic scale."""
    curve = [(rank, count) for rank, count in data.get("curve") or [] if rank > 0 and count > 0]
    if not curve:
        return None
    shapes, notes = shaded(data.get("slices") or {}, curve[-1][0], log=True)
    trace = {
        "type": "scatter",
        "mode": "lines",
        "x": [rank for rank, _ in curve],
        "y": [count for _, count in curve],
        "line": {"color": "--blue", "width": 2.5},
        "hoverinfo": "text",
        "hovertext": [
            f"label of rank {rank:,}<br>{count:,} training examples" for rank, count in curve
        ],
    }
    log = {"type": "log", "dtick": 1, "tickformat": "~s"}
    span = [
        math.log10(min(count for _, count in curve)) - 0.1,
        math.log10(max(count for _, count in curve)) + 0.35,
    ]
    layout = {
        "height": 380,
        "shapes": shapes,
        "annotations": notes,
        "xaxis": axis("rank of the label", **log),
        "yaxis": axis("training examples", **log, range=span),
    }
    alt = (
        f"Training examples against rank, on logarithmic scales: from {curve[0][1]:,} for the most "
        "frequent label to "
    )
    return Figure(
        "rank-frequency",
        f"{alt}{curve[-1][1]:,} for the one of rank {curve[-1][0]:,}.",
        [trace],
        layout,
    )


def shaded(
    slices: dict[str, Any], last_rank: float, *, log: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Boxes behind the ranks of each slice, and their names; `log` tells the axis."""
    boxes = []
    names = []
    first = 1
    for name in NAMES:
        last = (slices.get("last_rank") or {}).get(name)
        if not last or last < first:  # nobody is in this slice
            continue
        start = max(first - 0.5, 1)
        end = max(min(last + 0.5, last_rank), first)
        box = {
            "type": "rect",
            "x0": start,
            "x1": end,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 0},
            "layer": "below",
        }
        boxes.append(box | {"fillcolor": f"--{name}"})
        size = (slices.get("sizes") or {}).get(name)
        text = f"<b>{name.capitalize()}</b>" + (f"<br>{size:,}" if size is not None else "")
        # On a logarithmic axis plotly counts names in powers of ten, but boxes not.
        middle = math.log10(start * end) / 2 if log else (start + end) / 2
        names.append(
            {
                "x": middle,
                "y": 1,
                "yref": "paper",
                "yanchor": "top",
                "text": text,
                "showarrow": False,
            }
        )
        first = last + 1
    return boxes, names


def trade_off(measured: Measured) -> Figure | None:
    """Head against tail, and the schemes that no other beats on both."""
    by = measured.yardstick
    rare = measured.rare
    head, tail = (
        {name: measured.of(name, by.metric, slice_) for name in measured.schemes}
        for slice_ in ("head", rare)
    )
    pairs = {
        name: (head[name].value, tail[name].value)
        for name in measured.schemes
        if head[name].known and tail[name].known
    }
    if not pairs:
        return None
    texts = {
        name: f"<b>{plain(name)}</b><br>Head {by.name} {with_error(head[name])}<br>"
        f"{rare.capitalize()} {by.name} {with_error(tail[name])}"
        for name in pairs
    }
    front = pareto_front({name: (by.sign * x, by.sign * y) for name, (x, y) in pairs.items()})
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [pairs[name][0] for name in front],
        "y": [pairs[name][1] for name in front],
        "line": {"color": "--muted", "width": 6},
        "opacity": 0.35,
        "name": FRONT,
        "showlegend": True,
        "hoverinfo": "skip",
    }
    both = {name: (head[name], tail[name]) for name in pairs}
    traces, layout, narrow = named_scatter(
        both, texts, looks(measured.schemes), also=[FRONT], shares=True
    )
    across = layout["xaxis"]["range"]
    up = layout["yaxis"]["range"]
    layout |= {
        "xaxis": axis(f"{by.title} on head labels", tickformat=share_format(across), range=across),
        "yaxis": axis(f"{by.title} on {rare} labels", tickformat=share_format(up), range=up),
    }
    alt = (
        f"{by.title} on head labels against {rare} labels, a scheme a point. On the Pareto front: "
        f"{', '.join(front)}."
    )
    return Figure("trade-off", alt, [line, *traces], layout, narrow)


def prediction(agreement: Agreement, reference: Reference) -> Figure | None:
    """Predicted lean against the measured shift from head to tail."""
    if not agreement.predicted:
        return None
    pairs = {
        name: (Estimate(lean), _in_points(agreement.shift[name]))
        for name, lean in agreement.predicted.items()
    }
    texts = {
        name: (
            f"<b>{plain(name)}</b><br>predicted lean {lean.value:+.2f} nats<br>measured shift "
            f"{points(shift.value / 100)} points"
        )
        for name, (lean, shift) in pairs.items()
    }
    by = reference.measured.yardstick
    traces, layout, narrow = named_scatter(pairs, texts, looks(list(pairs)))
    up = layout["yaxis"]["range"]
    x = axis(
        "predicted lean, in nats (head ◂ ▸ tail)", range=layout["xaxis"]["range"], zeroline=True
    )
    moved = _MOVED[by.sign].format(reference.measured.rare)
    whole = "+.0f" if up[1] - up[0] > 6 else "+.1f"
    y = axis(f"{moved}, in points against {plain(reference.name)}", tickformat=whole, range=up)
    layout |= {"xaxis": x, "yaxis": y | {"zeroline": True}}
    return Figure(
        "prediction",
        f"Predicted lean against measured shift. {agreement.sentence}",
        traces,
        layout,
        narrow,
    )


def _in_points(one: Estimate) -> Estimate:
    return Estimate(100 * one.value, 100 * one.low, 100 * one.high, one.seeds)
