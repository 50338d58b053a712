"""Where the names of points in a chart stand, so that they do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARK = 13
"""Pixels a marker takes."""


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


def place(points: dict[str, tuple[float, float]], canvas: Canvas, bars: Sequence[Box] = (), sweeps: int = 4) -> dict[str, Place]:
    """A place for every name, improved one name at a time: near its point, off other names, points and bars, inside the canvas.

    Args:
        points: name: its point.
        canvas: where they are drawn.
        bars: error bars, from their first x and y to their last.
        sweeps: how often each name is placed anew.

    >>> canvas = Canvas(400, 300, (0, 1), (0, 1), font=12)
    >>> found = place({"a": (0.5, 0.5), "b": (0.5, 0.52)}, canvas)
    >>> found["a"] != found["b"]
    True
    """
    at = {name: canvas.pixel(*point) for name, point in points.items()}
    marks = {name: _box(x, y, MARK, MARK) for name, (x, y) in at.items()}
    size = {name: (0.56 * canvas.font * len(name) + 4, 1.25 * canvas.font) for name in points}
    lines = [_line(canvas.pixel(x0, y0), canvas.pixel(x1, y1)) for x0, y0, x1, y1 in bars]
    chosen: dict[str, Place] = {}

    def cost(name: str, where: Place) -> float:
        x, y = at[name]
        box = _box(x + where.dx, y + where.dy, *size[name])
        names = sum(_overlap(box, _box(at[o][0] + p.dx, at[o][1] + p.dy, *size[o])) for o, p in chosen.items() if o != name)
        outside = size[name][0] * size[name][1] - _overlap(box, (0, 0, canvas.width, canvas.height))
        covered = sum(_overlap(box, mark) for other, mark in marks.items() if other != name)
        crossed = sum(_overlap(box, line) for line in lines)
        return 3 * names + 2 * covered + crossed + 5 * outside + (abs(where.dx) - size[name][0] / 2) ** 2 / 100 + where.dy**2 / 25

    for _ in range(sweeps):
        for name in points:
            chosen[name] = min(_candidates(*size[name]), key=lambda where, name=name: cost(name, where))
    return chosen


def _candidates(width: float, height: float) -> list[Place]:
    side, rise = width / 2 + MARK / 2 + 2, height / 2 + MARK / 2
    around = [Place(side, 0, True), Place(-side, 0, True), Place(0, -rise, True), Place(0, rise, True)]
    corners = [Place(sx * (side - 4), sy * rise, True) for sx in (1, -1) for sy in (-1, 1)]
    far = [Place(sx * (width / 2 + 16), sy * rise * n, False) for n in (1.6, 2.6, 3.6, 4.6) for sx in (1, -1) for sy in (-1, 1)]
    return around + corners + far


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _line(one: tuple[float, float], two: tuple[float, float]) -> Box:
    return min(one[0], two[0]) - 1, min(one[1], two[1]) - 1, max(one[0], two[0]) + 1, max(one[1], two[1]) + 1


def _overlap(one: Box, two: Box) -> float:
    across, down = min(one[2], two[2]) - max(one[0], two[0]), min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(down, 0.0)
