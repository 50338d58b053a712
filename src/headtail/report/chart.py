"""Charts as inline SVG: scales, axes and marks. Colours are CSS variables of the page."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WIDTHS = {"wide": 920.0, "narrow": 350.0}
"""Pixels of a chart on a desktop and on a phone; the page shows one of the two."""
NARROW_FROM = 500.0
"""A chart that is less wide is drawn for a phone."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_DIGITS = 9
DASHES = {"dot": "2 4", "dash": "8 5", "dashdot": "8 4 2 4", "longdashdot": "13 4 2 4"}
CORNERS = {
    "hexagon": (6, 30),
    "triangle-up": (3, -90),
    "triangle-down": (3, 90),
    "diamond": (4, 0),
    "square": (4, 45),
    "pentagon": (5, -90),
    "star-diamond": (8, 0),
}
"""Shape: number of corners, and the angle of the first one in degrees."""


@dataclass(frozen=True)
class Figure:
    """One chart of the page.

    Attributes:
        name: its id in the page.
        alt: what it shows, for readers who cannot see it.
        panels: what a reader can select: its HTML, or the columns of bars. A single one needs no
            name.
        chosen: the one that is shown at first.
        note: what else a reader must know to read it.
    """

    name: str
    alt: str
    panels: dict[str, Any]
    chosen: str = ""
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`.

    Attributes:
        low: first value.
        high: last value.
        log: whether it is logarithmic.
        share: whether values are shares, written in percent.
        whole: whether only whole numbers are ticks.
    """

    low: float
    high: float
    log: bool = False
    share: bool = False
    whole: bool = False

    @classmethod
    def around(cls, values: Iterable[float], room: float, *, share: bool = False) -> Scale:
        """Around these values, with room on both sides; within 0 and 1 for shares."""
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known), max(known)
        room = room * (high - low) or 0.05 * abs(high) or 0.01
        if share:
            return cls(max(low - room, 0.0), min(high + room, 1.0), share=True)
        return cls(low - room, high + room)

    def at(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self, most: int) -> list[float]:
        """Round values between the ends, about `most` at most.

        >>> Scale(0, 0.0011).ticks(5)
        [0.0, 0.00025, 0.0005, 0.00075, 0.001]
        """
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers[:: max(1, math.ceil(len(powers) / most))]]
        span = self.high - self.low
        if not span > 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(step * power for step in STEPS if span / (step * power) <= most)
        step = max(1.0, math.ceil(step)) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, last + 1)]

    def texts(self, ticks: Sequence[float]) -> list[str]:
        """Ticks in words, with as many decimals as they need: no two are the same.

        >>> Scale(0, 0.001, share=True).texts([0.0, 0.0005, 0.001])
        ['0.00%', '0.05%', '0.10%']
        """
        if self.log:
            return [_short(tick) for tick in ticks]
        values = [float(f"{100 * tick:.12g}") if self.share else tick for tick in ticks]
        enough = (
            digits
            for digits in range(MOST_DIGITS)
            if all(math.isclose(round(value, digits), value, abs_tol=1e-12) for value in values)
        )
        digits = next(enough, MOST_DIGITS)
        unit = "%" if self.share else ""
        return [f"{value:,.{digits}f}{unit}".replace("-", "−") for value in values]


def _short(number: float) -> str:
    """A power of ten: 100, 10k, 1M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


@dataclass(frozen=True)
class Frame:
    """The drawing area of a chart between its axes.

    Attributes:
        width: of the whole chart, in pixels.
        height: of the whole chart.
        x: the horizontal scale.
        y: the vertical scale.
        margin: pixels on the left, right, top and bottom.
    """

    width: float
    height: float
    x: Scale
    y: Scale
    margin: tuple[float, float, float, float] = (58, 14, 14, 46)

    @property
    def narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.width < NARROW_FROM

    @property
    def inner(self) -> tuple[float, float]:
        """Width and height of the area between the axes."""
        left, right, top, bottom = self.margin
        return self.width - left - right, self.height - top - bottom

    @property
    def area(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of that area."""
        left, right, top, bottom = self.margin
        return left, top, self.width - right, self.height - bottom

    def pixel(self, point: tuple[float, float]) -> tuple[float, float]:
        """The pixel of a point."""
        return self.px(point[0]), self.py(point[1])

    def px(self, x: float) -> float:
        """The pixel of a value on the horizontal axis."""
        return self.margin[0] + self.x.at(x) * self.inner[0]

    def py(self, y: float) -> float:
        """The pixel of a value on the vertical axis."""
        return self.height - self.margin[3] - self.y.at(y) * self.inner[1]

    def axes(self, x_title: str, y_title: str, ticks: tuple[int, int] = (8, 6)) -> str:
        """Grid, ticks and titles; a phone gets half of the ticks across."""
        left, right, top, bottom = self.margin
        most = max(3, ticks[0] // 2) if self.narrow else ticks[0]
        parts = []
        xs = self.x.ticks(most)
        for x, text in zip(xs, self.x.texts(xs), strict=True):
            at = self.px(x)
            parts.append(line((at, top), (at, self.height - bottom), "grid"))
            parts.append(words(text, at, self.height - bottom + 17, anchor="middle"))
        ys = self.y.ticks(ticks[1])
        for y, text in zip(ys, self.y.texts(ys), strict=True):
            at = self.py(y)
            parts.append(line((left, at), (self.width - right, at), "grid"))
            parts.append(words(text, left - 7, at + 4, anchor="end"))
        middle = left + self.inner[0] / 2
        parts.append(words(x_title, middle, self.height - 6, anchor="middle"))
        height = top + self.inner[1] / 2
        turned = f"rotate(-90 12 {height:.1f})"
        parts.append(words(y_title, 12, height, anchor="middle", transform=turned))
        return "".join(parts)


def sized(draw: Callable[[float], str]) -> str:
    """A chart for a desktop and for a phone."""
    return "".join(f'<div class="{name}">{draw(width)}</div>' for name, width in WIDTHS.items())


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """A drawing of this size, which shrinks and grows with the page."""
    box = f"0 0 {width:g} {height:g}"
    return f'<svg viewBox="{box}" aria-hidden="true">{"".join(parts)}</svg>'


def element(name: str, text: str = "", inside: str = "", **attributes: str | float | None) -> str:
    """An element of the page, with text that stays text, and other elements inside; underscores in
    names of attributes become dashes.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value not in (None, "")
    )
    return f"<{name}{written}>{html.escape(text)}{inside}</{name}>"


def _attribute(value: str | float | None) -> str:
    number = isinstance(value, int | float)
    return f"{value:.1f}".removesuffix(".0") if number else html.escape(str(value))


def line(start: tuple[float, float], end: tuple[float, float], kind: str, style: str = "") -> str:
    """A straight line of a kind that page.css knows."""
    (x1, y1), (x2, y2) = start, end
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, style=style)


def words(text: str, x: float, y: float, anchor: str = "start", **attributes: str) -> str:
    """Text with its baseline at y."""
    return element("text", text, x=x, y=y, text_anchor=anchor, **attributes)


def path(points: Iterable[tuple[float, float]], colour: str, dash: str, kind: str = "curve") -> str:
    """A line through points, with gaps where a number is missing."""
    drawn = ""
    pen = "M"
    for x, y in points:
        if math.isfinite(x + y):
            drawn += f"{pen}{x:.1f} {y:.1f}"
            pen = "L"
        else:
            pen = "M"
    style = f"stroke:var({colour})"
    dashes = DASHES.get(dash)
    return element("path", d=drawn, class_=kind, style=style, stroke_dasharray=dashes)


def mark(symbol: str, x: float, y: float, colour: str, tip: str = "", radius: float = 6.5) -> str:
    """A marker: a shape, filled or "-open", perhaps with a "-dot" in the middle."""
    shape, _, filling = symbol.partition("-open")
    inside = "var(--paper)" if "-open" in symbol else f"var({colour})"
    style = f"fill:{inside};stroke:var({colour})"
    options = {"class_": "mark", "style": style, "data_tip": tip}
    if shape == "circle":
        drawn = element("circle", cx=x, cy=y, r=radius, **options)
    else:
        corners, first = CORNERS[shape]
        star = [1.0, 0.45] if shape.startswith("star") else [1.0]
        outline = [
            (1.2 * radius * star[i % len(star)], math.radians(first + 360 * i / corners))
            for i in range(corners)
        ]
        at = " ".join(f"{x + r * math.cos(a):.1f},{y + r * math.sin(a):.1f}" for r, a in outline)
        drawn = element("polygon", points=at, **options)
    dot = element("circle", cx=x, cy=y, r=1.8, style=f"fill:var({colour})") if filling else ""
    return drawn + dot


def strips(frame: Frame, tips: Sequence[tuple[float, str]]) -> str:
    """Invisible columns around values of the horizontal axis, which show a text under the mouse."""
    _, right, top, _ = frame.margin
    at = [frame.px(x) for x, _ in tips]
    ends = [(a + b) / 2 for a, b in pairwise(at)]
    edges = [frame.margin[0], *ends, frame.width - right]
    return "".join(
        element(
            "rect",
            x=start,
            y=top,
            width=max(end - start, 0.1),
            height=frame.inner[1],
            class_="strip",
            data_tip=tip,
        )
        for (_, tip), (start, end) in zip(tips, pairwise(edges), strict=True)
    )


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    name: str
    colour: str
    dash: str = ""
    symbol: str = ""
    number: str = ""
    kind: str = "curve"


def legend(keys: Iterable[Key]) -> str:
    """Names with their lines or markers, below a chart."""
    entries = ""
    for key in keys:
        if key.symbol:
            drawn = mark(key.symbol, 14, 8, key.colour, radius=5.5)
        else:
            drawn = path([(1, 8), (27, 8)], key.colour, key.dash, key.kind)
        number = element("b", key.number) if key.number else ""
        swatch = f'<svg class="swatch" viewBox="0 0 28 16" aria-hidden="true">{drawn}</svg>'
        entries += f"<li>{number}{swatch}{html.escape(key.name)}</li>"
    return f'<ul class="legend">{entries}</ul>' if entries else ""
