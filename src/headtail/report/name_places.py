"""Where to put the names of points in a chart, so that they do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MARK = 13
"""Pixels of a marker's height and width."""
STANDOFF = 7.0
"""Pixels of a leader next to its point that are not drawn."""


@dataclass(frozen=True)
class Canvas:
    """The drawing area of a chart.

    Attributes:
        width: in pixels.
        height: in pixels.
        x: first and last value on the horizontal axis.
        y: first and last value on the vertical axis.
        font: size of the names in pixels.
    """

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    font: float

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """The pixels of a point, from the top left."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) * self.width
        return across, (self.y[1] - y) / (self.y[1] - self.y[0]) * self.height


@dataclass(frozen=True)
class Place:
    """Where the centre of a name is, in pixels right of and below its point."""

    dx: float
    dy: float
    near: bool


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Spots = dict[str, tuple[float, float]]
"""The points of names."""
Leader = tuple[tuple[float, float], tuple[float, float]]
"""A line from a point to its name."""


class Label(NamedTuple):
    """What is written for a point, and where."""

    text: str
    place: Place


def labels_for(points: Spots, canvas: Canvas, lines: Sequence[Box] = ()) -> dict[str, Label]:
    """A label for every point: its name where that is legible, else a number.

    Of crowded names, those that clash most are replaced first; points on top of each other all have
    numbers.

    Args:
        points: name: its point.
        canvas: where they are drawn.
        lines: error bars and curves, which labels should not cover, from their first x and y to
            their last.

    >>> crowd = {f"within-batch:tail({i})": (0.5 + i / 1000, 0.5) for i in range(3)}
    >>> canvas = Canvas(400, 300, (0, 1), (0, 1), font=12)
    >>> [label.text for label in labels_for({"alone": (0.1, 0.1), **crowd}, canvas).values()]
    ['alone', '1', '2', '3']
    """
    marks = _Layout(points, canvas, lines, {})
    numbered = {name for name in points if marks.piled(name)}
    while True:
        numbers = {name: str(i + 1) for i, name in enumerate(n for n in points if n in numbered)}
        layout = _Layout(points, canvas, lines, numbers)
        layout.improve(list(points))
        clash = {name: layout.clash(name) for name in points if name not in numbered}
        worst = max(clash, key=lambda name: (clash[name], len(name)), default=None)
        if worst is None or clash[worst] <= 0:
            return {name: Label(numbers.get(name, name), layout.chosen[name]) for name in points}
        numbered.add(worst)


class _Layout:
    """Names on a canvas, and the cost of each place."""

    def __init__(
        self, points: Spots, canvas: Canvas, lines: Sequence[Box], numbers: dict[str, str]
    ) -> None:
        self.canvas = canvas
        self.chosen = dict[str, Place]()
        self.at = {name: canvas.pixel(*point) for name, point in points.items()}
        self.marks = {name: _box(x, y, MARK, MARK) for name, (x, y) in self.at.items()}
        self.size = {
            name: (0.58 * canvas.font * len(numbers.get(name, name)) + 4, 1.25 * canvas.font)
            for name in points
        }
        self.lines = [_line(canvas.pixel(x0, y0), canvas.pixel(x1, y1)) for x0, y0, x1, y1 in lines]

    def improve(self, names: Sequence[str], sweeps: int = 4) -> None:
        for _ in range(sweeps):
            for name in names:
                self.chosen[name] = min(
                    _candidates(*self.size[name]),
                    key=lambda where, name=name: self.cost(name, where),
                )

    def box(self, name: str, where: Place) -> Box:
        x, y = self.at[name]
        return _box(x + where.dx, y + where.dy, *self.size[name])

    def cost(self, name: str, where: Place) -> float:
        box = self.box(name, where)
        width, _ = self.size[name]
        crossed = sum(_overlap(box, line) for line in self.lines)
        far = (abs(where.dx) - width / 2) ** 2 / 100 + where.dy**2 / 25
        return self.clash(name, where) + crossed + far

    def clash(self, name: str, where: Place | None = None) -> float:
        """What makes a name illegible: names and points that it covers, leaders through names, and
        the edge.
        """
        where = self.chosen[name] if where is None else where
        box = self.box(name, where)
        others = [(other, spot) for other, spot in self.chosen.items() if other != name]
        names = sum(_overlap(box, self.box(other, spot)) for other, spot in others)
        covered = sum(_overlap(box, mark) for other, mark in self.marks.items() if other != name)
        outside = (box[2] - box[0]) * (box[3] - box[1]) - _overlap(
            box, (0, 0, self.canvas.width, self.canvas.height)
        )
        leader = self.leader(name, where)
        tangled = sum(
            _crosses(leader, self.box(other, spot)) or _crosses(self.leader(other, spot), box)
            for other, spot in others
        )
        tangled += sum(
            _crosses(leader, mark) for other, mark in self.marks.items() if other != name
        )
        return 3 * names + 2 * covered + 5 * outside + 200 * tangled

    def piled(self, name: str) -> bool:
        """Whether other points cover this one, so that a name would be ambiguous."""
        own = self.marks[name]
        others = (mark for other, mark in self.marks.items() if other != name)
        return sum(_overlap(own, mark) for mark in others) > MARK**2

    def leader(self, name: str, where: Place) -> Leader | None:
        """The line from a point towards the middle of its name, up to the name's edge; None if the
        name is near.
        """
        if where.near:
            return None
        x, y = self.at[name]
        width, height = self.size[name]
        inside = min(width / 2 / abs(where.dx), height / 2 / abs(where.dy))
        start = STANDOFF / math.hypot(where.dx, where.dy)
        end = 1 - inside
        first = (x + start * where.dx, y + start * where.dy)
        return first, (x + end * where.dx, y + end * where.dy)


def _candidates(width: float, height: float) -> list[Place]:
    side = width / 2 + MARK / 2 + 2
    rise = height / 2 + MARK / 2
    around = [
        Place(side, 0, True),
        Place(-side, 0, True),
        Place(0, -rise, True),
        Place(0, rise, True),
    ]
    corners = [Place(sx * (side - 4), sy * rise, True) for sx in (1, -1) for sy in (-1, 1)]
    far = [
        Place(sx * (width / 2 + 16), sy * rise * n, False)
        for n in (1.6, 2.6, 3.6, 4.6)
        for sx in (1, -1)
        for sy in (-1, 1)
    ]
    return around + corners + far


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _line(start: tuple[float, float], end: tuple[float, float]) -> Box:
    (x0, y0), (x1, y1) = start, end
    return min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1


def _overlap(a: Box, b: Box) -> float:
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    return max(across, 0.0) * max(down, 0.0)


def _crosses(leader: Leader | None, box: Box) -> bool:
    """Whether a leader runs through a box: whether its part between the left and right side and
    its part between top and bottom overlap.
    """
    if leader is None:
        return False
    (x0, y0), (x1, y1) = leader
    first = 0.0
    last = 1.0
    for start, step, low, high in ((x0, x1 - x0, box[0], box[2]), (y0, y1 - y0, box[1], box[3])):
        if step == 0:
            if not low < start < high:
                return False
            continue
        ends = (low - start) / step, (high - start) / step
        first = max(first, min(ends))
        last = min(last, max(ends))
    return first < last
