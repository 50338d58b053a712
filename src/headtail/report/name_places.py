"""Where to put the names of points in a chart, so that they do not cover each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MARK = 13.0
"""Pixels of a marker's height and width."""
ROUNDING = 1e-6
"""Square pixels that a sum of areas may be off by."""
SWEEPS = 4
"""Times that every label looks for a better place."""

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


class Label(NamedTuple):
    """What is written for a point, and the pixels of its middle."""

    text: str
    x: float
    y: float


def labels_for(
    points: Mapping[str, Point], area: Box, font: float, lines: Sequence[Box] = ()
) -> dict[str, Label]:
    """A label for every point: its name where that is legible, else a number.

    Of crowded names, those that clash most are replaced first; points on top of each other all have
    numbers.

    Args:
        points: name: its pixel.
        area: where labels may be.
        font: size of the letters in pixels.
        lines: error bars and curves, which labels should not cover.

    >>> crowd = {f"within-batch:tail({i})": (200.0 + i, 100.0) for i in range(3)}
    >>> labels = labels_for({"alone": (40.0, 40.0), **crowd}, (0, 0, 400, 300), font=12)
    >>> [label.text for label in labels.values()]
    ['alone', '1', '2', '3']
    """
    marks = {name: _box(x, y, MARK, MARK) for name, (x, y) in points.items()}
    covered = {
        name: sum(_overlap(mark, marks[other]) for other in marks if other != name)
        for name, mark in marks.items()
    }
    numbered = {name for name, area_covered in covered.items() if area_covered > MARK**2}
    while True:
        layout = _Layout(points, marks, area, font, lines, numbered)
        layout.improve()
        clash = {name: layout.clash(name, layout.at[name]) for name in points}
        named = [name for name in points if name not in numbered]
        worst = max(named, key=lambda name: (clash[name], len(name)), default="")
        if not worst or clash[worst] <= ROUNDING:
            return {name: Label(layout.texts[name], *layout.at[name]) for name in points}
        numbered.add(worst)


class _Layout:
    """Labels in an area, and the cost of each place."""

    def __init__(
        self,
        points: Mapping[str, Point],
        marks: Mapping[str, Box],
        area: Box,
        font: float,
        lines: Sequence[Box],
        numbered: set[str],
    ) -> None:
        order = [name for name in points if name in numbered]
        self.texts = {n: str(order.index(n) + 1) if n in numbered else n for n in points}
        self.size = {n: (0.58 * font * len(t) + 4, 1.25 * font) for n, t in self.texts.items()}
        self.points = points
        self.marks = marks
        self.area = area
        self.lines = lines
        self.at: dict[str, Point] = {}

    def improve(self) -> None:
        """Give every label the place that is best, given the others."""
        places = {name: self.places(name) for name in self.points}
        # There are many lines, and they stay where they are.
        crossed = {name: [self.crossed(name, at) for at in places[name]] for name in places}
        for _ in range(SWEEPS):
            for name, around in places.items():
                both = zip(around, crossed[name], strict=True)
                costs = [self.clash(name, at) + covered for at, covered in both]
                self.at[name] = around[costs.index(min(costs))]

    def places(self, name: str) -> list[Point]:
        """Around the point, the best side first."""
        x, y = self.points[name]
        width, height = self.size[name]
        side = (width + MARK) / 2 + 2
        rise = (height + MARK) / 2
        across = [(x + side, y), (x - side, y), (x, y - rise), (x, y + rise)]
        corners = [(x + sx * (side - 4), y + sy * rise) for sx in (1, -1) for sy in (-1, 1)]
        if self.texts[name] == name:
            return [*across, *corners]
        # Points on top of each other, perhaps in a corner: numbers may be a little further off.
        left = [(x - side - step * width, y) for step in (1, 2)]
        up = [(x, y - rise - step * height) for step in (1, 2)]
        return [*across, *corners, *left, *up]

    def clash(self, name: str, at: Point) -> float:
        """What makes a label illegible: labels and points that it covers, and the edge."""
        box = _box(*at, *self.size[name])
        others = [other for other in self.at if other != name]
        labels = sum(_overlap(box, _box(*self.at[o], *self.size[o])) for o in others)
        covered = sum(_overlap(box, mark) for other, mark in self.marks.items() if other != name)
        width, height = self.size[name]
        return 3 * labels + 2 * covered + 5 * (width * height - _overlap(box, self.area))

    def crossed(self, name: str, at: Point) -> float:
        """How much of the lines a label covers, which is bad but legible."""
        box = _box(*at, *self.size[name])
        return sum(_overlap(box, line) for line in self.lines)


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(a: Box, b: Box) -> float:
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    return max(across, 0.0) * max(down, 0.0)
