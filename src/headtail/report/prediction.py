"""Whether the prediction before training agrees with what was measured: a sentence and a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtail.report.chart import Figure, Frame, line, sized
from headtail.report.look import looks
from headtail.report.measured import Measured, Reference
from headtail.report.scatter import NamedPoints
from headtail.report.seed_mean import SeedMean, points

ENOUGH_SCHEMES = 5
"""Fewer schemes than this are often put in order by chance alone."""
_VERDICTS = (
    (0.9, "agree"),
    (0.6, "mostly agree"),
    (0.3, "agree only weakly"),
    (-0.3, "disagree, as if there were no relation"),
    (-math.inf, "disagree, and one runs against the other"),
)
_SHIFTS = {1: "{} minus head Recall@10", -1: "error saved on the {} minus on the head"}
"""What moved from head to tail, where more is better and where less is."""


@dataclass(frozen=True)
class Agreement:
    """Predicted lean against measured shift.

    Attributes:
        predicted: scheme: lean in nats.
        shift: scheme: its improvement of the tail minus that of the head, against the reference.
        left_out: schemes without a prediction or a measurement.
        correlation: Spearman's, NaN if it is undefined.
    """

    predicted: dict[str, float]
    shift: dict[str, SeedMean]
    left_out: list[str]
    correlation: float

    @classmethod
    def of(cls, measured: Measured, schemes: dict[str, dict[str, Any]]) -> Agreement:
        """Of every scheme with a lean; answers that are adjusted after training lean in a way that
        the loss does not show.
        """
        reference = Reference.of(measured)
        shift = {name: reference.shift(name) for name in measured.schemes}
        predicted = {
            name: float(about["lean"])
            for name, about in schemes.items()
            if not name.endswith("+post-hoc")
            and about.get("lean") is not None
            and math.isfinite(about["lean"])
        }
        both = [name for name in measured.schemes if name in predicted and shift[name].known]
        left_out = [name for name in measured.schemes if name not in both]
        predicted = {name: predicted[name] for name in both}
        shift = {name: shift[name] for name in both}
        measured_shifts = [mean.value for mean in shift.values()]
        correlation = spearman(list(predicted.values()), measured_shifts)
        return cls(predicted, shift, left_out, correlation)

    @property
    def sentence(self) -> str:
        """The correlation in words."""
        count = len(self.predicted)
        size = f"{self.correlation:.2f}".replace("-", "−")
        if count < 2:
            return (
                "An order needs at least two schemes with a predicted lean and a measured head and "
                "tail."
            )
        if not math.isfinite(self.correlation):
            return (
                f"All {count} schemes have the same predicted lean or the same measured shift, so "
                "there is no order to compare."
            )
        if count < ENOUGH_SCHEMES:
            return (
                f"Spearman's rank correlation is {size}, but {count} schemes are too few to say "
                "whether the two orders agree."
            )
        verdict = next(word for least, word in _VERDICTS if self.correlation >= least)
        return (
            f"The predicted and the measured order {verdict}: Spearman's rank correlation over "
            f"{count} schemes is {size}."
        )


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN if one side has no order.

    >>> round(spearman([1, 2, 3], [1, 3, 2]), 6)
    0.5
    """
    if len(x) < 2:
        return math.nan
    # Values that differ in their last digits only are equal.
    a, b = (
        _ranks([round(value, 6) for value in values]) - (len(values) + 1) / 2 for values in (x, y)
    )
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else math.nan


def _ranks(values: Sequence[float]) -> np.ndarray:
    """From 1 on, ties sharing their mean: as scipy's `rankdata`, which takes a second to load."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    return (last - (count - 1) / 2)[place]


def prediction(agreement: Agreement, reference: Reference) -> Figure | None:
    """Predicted lean against the measured shift from head to tail."""
    if not agreement.predicted:
        return None
    means = {
        name: (SeedMean(lean), _in_points(agreement.shift[name]))
        for name, lean in agreement.predicted.items()
    }
    tips = {
        name: f"{name}\npredicted lean {lean.value:+.2f} nats\nmeasured shift "
        f"{points(shift.value / 100)} points"
        for name, (lean, shift) in means.items()
    }
    measured = reference.measured
    shift = _SHIFTS[measured.yardstick.sign].format(measured.rare)
    titles = ("predicted lean, in nats (head ◂ ▸ tail)", f"{shift}, in points")
    scatter = NamedPoints(means, tips, looks(list(means)), titles)
    alt = f"Predicted lean against measured shift. {agreement.sentence}"
    panel = sized(lambda width: scatter.draw(frame := scatter.frame(width), [_zeros(frame)]))
    return Figure("prediction", alt, {"": panel}, note=f"Points against {reference.name}.")


def _zeros(frame: Frame) -> str:
    """Lines at 0, where they are inside."""
    left, right, top, bottom = frame.margin
    drawn = ""
    if frame.x.low < 0 < frame.x.high:
        drawn += line((frame.px(0), top), (frame.px(0), frame.height - bottom), "zero")
    if frame.y.low < 0 < frame.y.high:
        drawn += line((left, frame.py(0)), (frame.width - right, frame.py(0)), "zero")
    return drawn


def _in_points(mean: SeedMean) -> SeedMean:
    return SeedMean(100 * mean.value, 100 * mean.low, 100 * mean.high, mean.seeds)
