"""Learning curves: one small chart per scheme, each loss on its own scale."""

from __future__ import annotations

import math
from collections import defaultdict

from headtail.comparison.results import POPULAR, Comparison
from headtail.report.chart import Figure, Frame, Scale, element, mark, path, strips, svg, words
from headtail.report.look import Look, looks
from headtail.report.seed_mean import SeedMean, percent

Curve = list[tuple[float, SeedMean]]
"""Epochs, and for each the mean over the seeds that reached it."""
WIDTH = 285.0
HEIGHT = 150.0
TICKS = 4
"""On the vertical axis, at most."""
DIGIT = 7.4
"""Pixels of the width of a digit."""


def learning_curves(comparison: Comparison) -> Figure | None:
    """What was measured during training, by epoch, mean over seeds; a loss has a scale of its own
    in every chart, because schemes optimise different losses.
    """
    curves = _curves(comparison)
    if not curves:
        return None
    order = list(dict.fromkeys([*comparison.schemes, *(s for by in curves.values() for s in by)]))
    look = looks(order)
    best = {row.scheme: row.epoch for row in comparison.rows if row.split == "test" and row.epoch}
    panels = {}
    for title, by_scheme in curves.items():
        values = [mean.value for curve in by_scheme.values() for _, mean in curve]
        shared = None if title.endswith("loss") else Scale.around(values, 0.06, share=True)
        charts = [
            _chart(name, by_scheme[name], look[name], best.get(name), shared)
            for name in order
            if name in by_scheme
        ]
        panels[title] = f'<div class="small-charts">{"".join(charts)}</div>'
    chosen = next((title for title in panels if "validation" in title), next(iter(panels)))
    alt = f"Learning curves by epoch, one chart per scheme: {' or '.join(panels)}."
    return Figure("curves", alt, panels, chosen)


def _curves(comparison: Comparison) -> dict[str, dict[str, Curve]]:
    """What was measured: scheme: its curve."""
    gathered: dict[str, dict[str, dict[float, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for row in comparison.rows:
        drawn = row.split == "validation" or (row.split == "train" and row.metric == "loss")
        if (
            drawn
            and row.scheme != POPULAR
            and row.slice in ("full", "")
            and math.isfinite(row.value)
        ):
            split = "training" if row.split == "train" else row.split
            metric = row.metric.replace("-", " ")
            gathered[f"{split} {metric}"][row.scheme][row.epoch][row.seed] = row.value
    return {
        title: {
            scheme: [(epoch, SeedMean.of(by_seed)) for epoch, by_seed in sorted(epochs.items())]
            for scheme, epochs in by_scheme.items()
        }
        for title, by_scheme in gathered.items()
    }


def _chart(name: str, curve: Curve, look: Look, best: float | None, shared: Scale | None) -> str:
    values = [mean.value for _, mean in curve]
    epochs = [epoch for epoch, _ in curve]
    y = shared or Scale.around(values, 0.06)
    x = Scale(0.0 if len(epochs) == 1 else epochs[0], epochs[-1], whole=True)
    longest = max(map(len, y.texts(y.ticks(TICKS))), default=0)
    frame = Frame(WIDTH, HEIGHT, x, y, (max(46.0, 9 + DIGIT * longest), 12, 12, 22))
    at = [frame.pixel((epoch, mean.value)) for epoch, mean in curve]
    parts = [frame.axes("", "", (7, TICKS)), path(at, look.colour, "")]
    tips = []
    for (epoch, mean), (px, py) in zip(curve, at, strict=True):
        shown = percent(mean.value) if shared else f"{mean.value:.4g}"
        seeds = f", mean of {mean.seeds} seeds" if mean.seeds > 1 else ""
        tips.append((epoch, f"{name}\nepoch {epoch:g}: {shown}{seeds}"))
        if epoch == best:
            parts.append(mark("circle", px, py, look.colour, radius=4))
            right = epoch < (x.low + x.high) / 2
            anchor = "start" if right else "end"
            high = py < HEIGHT / 2  # the curve is then far from the lower edge
            height = HEIGHT - 30 if high else frame.margin[2] + 10
            parts.append(words("best", px + (8 if right else -8), height, anchor))
            parts.append(element("line", x1=px, x2=px, y1=14, y2=HEIGHT - 22, class_="leader"))
    drawn = svg(WIDTH, HEIGHT, [*parts, strips(frame, tips)])
    return f"<div>{element('h4', name, class_='scheme')}{drawn}</div>"
