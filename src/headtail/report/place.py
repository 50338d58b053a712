"""Where the names of points in a chart stand, so that they do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARK = 13
"""Pixels a marker takes."""
STANDOFF = 7.0
"""Pixels of a leader that are not drawn, at its point."""


@dataclass(frozen=True)
class Canvas:
    """The drawing area of a chart, for which names are placed.

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
        """Where a point lies, from the top left."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) * self.width
        return across, (self.y[1] - y) / (self.y[1] - self.y[0]) * self.height


@dataclass(frozen=True)
class Place:
    """A name's place: its centre, in pixels right of and below its point."""

    dx: float
    dy: float
    near: bool


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Points = dict[str, tuple[float, float]]
Leader = tuple[tuple[float, float], tuple[float, float]]


def legible(points: Points, canvas: Canvas, bars: Sequence[Box] = ()) -> dict[str, Place]:
    """Places for the names that can be read at their points: where they crowd, those that clash
    most are left out, and all of a pile.

    >>> crowd = {f"within-batch:tail({i})": (0.5 + i / 1000, 0.5) for i in range(30)}
    >>> list(legible({"alone": (0.1, 0.1), **crowd}, Canvas(400, 300, (0, 1), (0, 1), font=12)))
    ['alone']
    """
    marks = _Layout(points, canvas, bars)
    names = [name for name in points if not marks.piled(name)]
    while names:
        layout = _Layout(points, canvas, bars)
        layout.improve(names)
        clash = {name: layout.clash(name) for name in names}
        worst = max(names, key=lambda name: (clash[name], len(name)))
        if clash[worst] <= 0:
            return layout.chosen
        names.remove(worst)
    return {}


def place(
    points: Points, canvas: Canvas, bars: Sequence[Box] = (), names: Iterable[str] | None = None
) -> dict[str, Place]:
    """A place for every name, improved one name at a time: near its point, off other names, points
    and bars, inside the canvas.

    Args:
        points: name: its point.
        canvas: where they are drawn.
        bars: error bars, from their first x and y to their last.
        names: those that are placed; all by default.

    >>> canvas = Canvas(400, 300, (0, 1), (0, 1), font=12)
    >>> found = place({"a": (0.5, 0.5), "b": (0.5, 0.52)}, canvas)
    >>> found["a"] != found["b"]
    True
    """
    layout = _Layout(points, canvas, bars)
    layout.improve(list(points if names is None else names))
    return layout.chosen


class _Layout:
    """Names on a canvas, and what each place costs."""

    def __init__(self, points: Points, canvas: Canvas, bars: Sequence[Box]) -> None:
        self.canvas = canvas
        self.chosen = dict[str, Place]()
        self.at = {name: canvas.pixel(*point) for name, point in points.items()}
        self.marks = {name: _box(x, y, MARK, MARK) for name, (x, y) in self.at.items()}
        self.size = {
            name: (0.56 * canvas.font * len(name) + 4, 1.25 * canvas.font) for name in points
        }
        self.lines = [_line(canvas.pixel(x0, y0), canvas.pixel(x1, y1)) for x0, y0, x1, y1 in bars]

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
        """What makes a name unreadable: names and points that it covers, leaders through names, and
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
        """Whether others lie on a point, so that nobody sees which of them a name means."""
        return (
            sum(
                _overlap(self.marks[name], mark)
                for other, mark in self.marks.items()
                if other != name
            )
            > MARK**2
        )

    def leader(self, name: str, where: Place) -> Leader | None:
        """The line from a point towards the middle of its name, where that is not near; it ends at
        the name's edge.
        """
        if where.near:
            return None
        x, y = self.at[name]
        width, height = self.size[name]
        inside = min(width / 2 / abs(where.dx), height / 2 / abs(where.dy))
        start = STANDOFF / math.hypot(where.dx, where.dy)
        end = 1 - inside
        return (x + start * where.dx, y + start * where.dy), (
            x + end * where.dx,
            y + end * where.dy,
        )


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


def _line(one: tuple[float, float], two: tuple[float, float]) -> Box:
    return (
        min(one[0], two[0]) - 1,
        min(one[1], two[1]) - 1,
        max(one[0], two[0]) + 1,
        max(one[1], two[1]) + 1,
    )


def _overlap(one: Box, two: Box) -> float:
    across = min(one[2], two[2]) - max(one[0], two[0])
    down = min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(down, 0.0)


def _crosses(leader: Leader | None, box: Box) -> bool:
    """Whether a leader runs through a box: whether the parts of it that lie between the box's
    sides, both ways, meet.
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
