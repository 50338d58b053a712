"""Head against tail, one point per scheme."""

from __future__ import annotations

import math

from headtail.report.figure import Figure, axis, plain
from headtail.report.look import looks
from headtail.report.measured import Measured
from headtail.report.scatter import named_scatter, share_format
from headtail.report.seed_mean import with_error

FRONT = "Pareto front: no scheme is better on both"


def trade_off(measured: Measured) -> Figure | None:
    """Head against tail, and the schemes that no other beats on both."""
    by = measured.yardstick
    rare = measured.rare
    head = {name: measured.of(name, by.metric, "head") for name in measured.schemes}
    tail = {name: measured.of(name, by.metric, rare) for name in measured.schemes}
    means = {
        name: (head[name], tail[name])
        for name in measured.schemes
        if head[name].known and tail[name].known
    }
    if not means:
        return None
    texts = {
        name: f"<b>{plain(name)}</b><br>Head {by.name} {with_error(head[name])}<br>"
        f"{rare.capitalize()} {by.name} {with_error(tail[name])}"
        for name in means
    }
    front = pareto_front({n: (by.sign * x.value, by.sign * y.value) for n, (x, y) in means.items()})
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [head[name].value for name in front],
        "y": [tail[name].value for name in front],
        "line": {"color": "--muted", "width": 6},
        "opacity": 0.35,
        "name": FRONT,
        "showlegend": True,
        "hoverinfo": "skip",
    }
    look = looks(measured.schemes)
    traces, layout, narrow = named_scatter(means, texts, look, also=[FRONT], shares=True)
    across = layout["xaxis"]["range"]
    up = layout["yaxis"]["range"]
    layout |= {
        "xaxis": axis(f"{by.title} on head labels", tickformat=share_format(across), range=across),
        "yaxis": axis(f"{by.title} on {rare} labels", tickformat=share_format(up), range=up),
    }
    alt = (
        f"{by.title} on head labels against {rare} labels, one point per scheme. On the Pareto "
        f"front: {', '.join(front)}."
    )
    return Figure("trade-off", alt, [line, *traces], layout, narrow)


def pareto_front(pairs: dict[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats: at least as good on both and better on one. Ordered by the
    first number.

    >>> pareto_front({"a": (0.5, 0.1), "b": (0.4, 0.3), "c": (0.4, 0.2)})
    ['b', 'a']
    """
    front = [
        name
        for name, (x, y) in pairs.items()
        if not any(u >= x and v >= y and (u > x or v > y) for u, v in pairs.values())
        and math.isfinite(x + y)
    ]
    return sorted(front, key=lambda name: pairs[name])
