"""Points with names and error bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headtail.report.chart import Frame, Key, Scale, legend, line, mark, svg, words
from headtail.report.look import Look
from headtail.report.name_places import Box, Point, labels_for
from headtail.report.seed_mean import SeedMean

Segment = tuple[Point, Point]
PIECE = 12.0
"""Pixels of a line that count as one box, which names should not cover."""


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

    means: dict[str, tuple[SeedMean, SeedMean]]
    tips: dict[str, str]
    look: dict[str, Look]
    titles: tuple[str, str]
    shares: bool = False
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)

    def frame(self, width: float) -> Frame:
        """The drawing area for a chart of this width."""
        x, y = (self._scale(side) for side in (0, 1))
        height = 500.0 if width > 500 else 430.0
        return Frame(width, height, x, y, (64, 22, 16, 46))

    def draw(self, frame: Frame, below: Iterable[str] = (), above: Iterable[str] = ()) -> str:
        """The chart, with other parts below and above the points."""
        font = 11.0 if frame.narrow else 13.0
        at = {name: frame.pixel((x.value, y.value)) for name, (x, y) in self.means.items()}
        bars = {name: self.error_bars(name) for name in at}
        curves = [segment for points in self.curves.values() for segment in pairwise(points)]
        segments = [*(bar for of_point in bars.values() for bar in of_point), *curves]
        ends = ((frame.pixel(start), frame.pixel(end)) for start, end in segments)
        lines = [box for start, end in ends for box in _along(start, end)]
        labels = labels_for(at, frame.area, font, lines)
        drawn = [frame.axes(*self.titles), *below]
        names = []
        for name, point in at.items():
            look = self.look[name]
            style = f"stroke:var({look.colour})"
            drawn += [
                line(frame.pixel(start), frame.pixel(end), "whisker", style)
                for start, end in bars[name]
            ]
            text, x, y = labels[name]
            size = f"font-size:{font:g}px"
            names.append(words(text, x, y + 0.35 * font, "middle", class_="name", style=size))
            drawn.append(mark(look.symbol, *point, look.colour, self.tips[name]))
        keys = [
            Key(name, self.look[name].colour, symbol=self.look[name].symbol, number=label.text)
            for name, label in labels.items()
            if label.text != name
        ]
        return svg(frame.width, frame.height, [*drawn, *above, *names]) + legend(keys)

    def error_bars(self, name: str) -> list[Segment]:
        """Of one point, across and up; within 0 and 1 for shares."""
        x, y = self.means[name]
        bars = []
        if x.has_bar:
            bars.append(((self._inside(x.low), y.value), (self._inside(x.high), y.value)))
        if y.has_bar:
            bars.append(((x.value, self._inside(y.low)), (x.value, self._inside(y.high))))
        return bars

    def _inside(self, end: float) -> float:
        return min(max(end, 0.0), 1.0) if self.shares else end

    def _scale(self, side: int) -> Scale:
        means = [pair[side] for pair in self.means.values()]
        ends = [end for mean in means for end in (mean.value, mean.low, mean.high)]
        ends += [point[side] for points in self.curves.values() for point in points]
        return Scale.around(ends, 0.08, share=self.shares)


def _along(start: Point, end: Point) -> list[Box]:
    """A line as short boxes that are a little wider than the line."""
    if not all(map(math.isfinite, (*start, *end))):
        return []
    number = max(1, math.ceil(math.dist(start, end) / PIECE))
    xs, ys = (
        [a + (b - a) * i / number for i in range(number + 1)]
        for a, b in zip(start, end, strict=True)
    )
    return [
        (min(x0, x1) - 2, min(y0, y1) - 2, max(x0, x1) + 2, max(y0, y1) + 2)
        for (x0, x1), (y0, y1) in zip(pairwise(xs), pairwise(ys), strict=True)
    ]
