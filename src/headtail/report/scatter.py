"""Points with names and error bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headtail.report.chart import Frame, Key, Scale, legend, line, mark, svg, words
from headtail.report.look import Look
from headtail.report.name_places import STANDOFF, Box, Canvas, Label, labels_for
from headtail.report.seed_mean import SeedMean

Means = dict[str, tuple[SeedMean, SeedMean]]
"""Scheme: its two numbers."""
Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Scheme: points of a curve."""


@dataclass(frozen=True)
class NamedPoints:
    """One point per scheme, with its name next to it, or a number where there is no room.

    Attributes:
        means: scheme: its two numbers.
        tips: scheme: what is shown under the mouse.
        look: scheme: how it looks.
        titles: of the two axes.
        shares: whether the numbers are shares: axes and error bars then end at 0 and 1.
        curves: points that the axes must include and names should not cover.
    """

    means: Means
    tips: dict[str, str]
    look: dict[str, Look]
    titles: tuple[str, str]
    shares: bool = False
    curves: Curves = field(default_factory=dict)

    def frame(self, width: float) -> Frame:
        """The drawing area for a chart of this width."""
        x, y = (self._scale(side) for side in (0, 1))
        height = 500.0 if width > 500 else 430.0
        return Frame(width, height, x, y, (64, 22, 16, 46))

    def draw(self, frame: Frame, below: Iterable[str] = (), above: Iterable[str] = ()) -> str:
        """The chart, with other parts below and above the points."""
        font = 11.0 if frame.narrow else 13.0
        canvas = Canvas(
            *frame.inner, (frame.x.low, frame.x.high), (frame.y.low, frame.y.high), font
        )
        points = {name: (x.value, y.value) for name, (x, y) in self.means.items()}
        labels = labels_for(points, canvas, [*self.error_bars(), *self._segments()])
        drawn = [frame.axes(*self.titles), *below]
        drawn += [self._bar(name, frame) for name in points]
        for name, (x, y) in points.items():
            look = self.look[name]
            drawn.append(_label(labels[name], frame.px(x), frame.py(y), font))
            drawn.append(mark(look.symbol, frame.px(x), frame.py(y), look.colour, self.tips[name]))
        keys = [
            Key(name, self.look[name].colour, symbol=self.look[name].symbol, number=label.text)
            for name, label in labels.items()
            if label.text != name
        ]
        return svg(frame.width, frame.height, [*drawn, *above]) + legend(keys)

    def _scale(self, side: int) -> Scale:
        means = [pair[side] for pair in self.means.values()]
        ends = [end for mean in means for end in (mean.value, mean.low, mean.high)]
        ends += [point[side] for points in self.curves.values() for point in points]
        ends = [end for end in ends if math.isfinite(end)]
        low = min(ends)
        high = max(ends)
        room = 0.08 * (high - low) or 0.05 * abs(high) or (0.01 if self.shares else 1.0)
        if self.shares:
            return Scale(max(low - room, 0.0), min(high + room, 1.0), share=True)
        return Scale(low - room, high + room)

    def _ends(self, mean: SeedMean) -> tuple[float, float]:
        """Of an error bar, within 0 and 1 for shares."""
        return (max(mean.low, 0.0), min(mean.high, 1.0)) if self.shares else (mean.low, mean.high)

    def error_bars(self) -> list[Box]:
        """From the first x and y of each to its last."""
        boxes = []
        for x, y in self.means.values():
            if x.has_bar:
                low, high = self._ends(x)
                boxes.append((low, y.value, high, y.value))
            if y.has_bar:
                low, high = self._ends(y)
                boxes.append((x.value, low, x.value, high))
        return boxes

    def _segments(self) -> list[Box]:
        return [
            (*start, *end) for points in self.curves.values() for start, end in pairwise(points)
        ]

    def _bar(self, name: str, frame: Frame) -> str:
        """The error bars of one point."""
        one = replace(self, means={name: self.means[name]})
        style = f"stroke:var({self.look[name].colour})"
        return "".join(
            line((frame.px(x1), frame.py(y1)), (frame.px(x2), frame.py(y2)), "whisker", style)
            for x1, y1, x2, y2 in one.error_bars()
        )


def _label(label: Label, x: float, y: float, font: float) -> str:
    where = label.place
    text = words(
        label.text,
        x + where.dx,
        y + where.dy + 0.35 * font,
        anchor="middle",
        class_="name",
        style=f"font-size:{font:g}px",
    )
    if where.near:
        return text
    length = math.hypot(where.dx, where.dy)
    start = STANDOFF / length
    end = max(start, 1 - 0.7 * font / abs(where.dy)) if where.dy else 0.5
    ends = [(x + share * where.dx, y + share * where.dy) for share in (start, end)]
    return line(ends[0], ends[1], "leader") + text
