"""Head against tail, one point per scheme, and the dial: what adjusting answers does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headtail.comparison.results import DIAL, Comparison
from headtail.report.chart import Figure, Key, element, legend, mark, path, sized
from headtail.report.look import looks
from headtail.report.measured import SLICES, Measured
from headtail.report.scatter import NamedPoints
from headtail.report.seed_mean import SeedMean, percent, with_error

FRONT = "Pareto front: no scheme is better on both"


@dataclass(frozen=True)
class Dial:
    """What post-hoc adjustment does to models that lean nowhere.

    Attributes:
        taus: from 0, which adjusts nothing.
        slices: those that are known.
        models: scheme: slice: a value for each τ, mean over seeds.
    """

    taus: list[float]
    slices: list[str]
    models: dict[str, dict[str, list[float]]]

    @classmethod
    def of(cls, comparison: Comparison, measured: Measured) -> Dial | None:
        """From the rows of a comparison; None if no model leans nowhere."""
        metric = measured.yardstick.metric
        found: dict[tuple[str, str, float], dict[int, float]] = {}
        for row in comparison.rows:
            if row.split.startswith(f"{DIAL}(") and row.metric == metric:
                tau = float(row.split.removeprefix(f"{DIAL}(").rstrip(")"))
                found.setdefault((row.scheme, row.slice, tau), {})[row.seed] = row.value
        taus = sorted({tau for _, _, tau in found})
        slices = [name for name in SLICES if measured.known(metric, name)]
        models = {}
        for scheme in [name for name in measured.schemes if any(name == key[0] for key in found)]:
            models[scheme] = {
                name: [
                    measured.of(scheme, metric, name).value,
                    *(SeedMean.of(found.get((scheme, name, tau), {})).value for tau in taus),
                ]
                for name in slices
            }
        return cls([0.0, *taus], slices, models) if models else None

    def curve(self, scheme: str, rare: str) -> list[tuple[float, float]]:
        """Head and tail for each τ."""
        by_slice = self.models[scheme]
        return list(zip(by_slice["head"], by_slice[rare], strict=True))

    def chosen(self, schemes: Iterable[str]) -> str:
        """The first of these schemes that has a curve, or else the first curve."""
        return next((name for name in schemes if name in self.models), next(iter(self.models)))

    def embedded(self) -> dict[str, Any]:
        """What the page's script needs."""
        return {"taus": self.taus, "models": self.models}


def trade_off(measured: Measured, dial: Dial | None = None) -> Figure | None:
    """Head against tail, the schemes that no other beats on both, and the curves of the dial."""
    by = measured.yardstick
    rare = measured.rare
    means = {
        name: (measured.of(name, by.metric, "head"), measured.of(name, by.metric, rare))
        for name in measured.schemes
    }
    means = {name: pair for name, pair in means.items() if all(mean.known for mean in pair)}
    if not means:
        return None
    tips = {
        name: f"{name}\nHead {by.name} {with_error(head)}\n"
        f"{rare.capitalize()} {by.name} {with_error(tail)}"
        for name, (head, tail) in means.items()
    }
    front = pareto_front({n: (by.sign * x.value, by.sign * y.value) for n, (x, y) in means.items()})
    look = looks(measured.schemes)
    titles = (f"{by.title} on head labels", f"{by.title} on {rare} labels")
    turned = [name for name in (dial.models if dial else ()) if name in means]
    curves = {name: dial.curve(name, rare) for name in turned} if dial else {}
    points = NamedPoints(means, tips, look, titles, shares=True, curves=curves)

    def draw(width: float) -> str:
        frame = points.frame(width)
        ends = [frame.pixel((means[n][0].value, means[n][1].value)) for n in front]
        below = [path(ends, "--muted", "", "front")]
        above = []
        for name, curve in curves.items():
            colour = look[name].colour
            at = [frame.pixel(point) for point in curve]
            below.append(path(at, colour, "dot", "curve thin"))
            above.append(_stops(name, dial, at, colour) if dial else "")
        keys = [Key(FRONT, "--muted", kind="front")]
        return points.draw(frame, below, above) + legend(keys)

    alt = (
        f"{by.title} on head labels against {rare} labels, one point per scheme. On the Pareto "
        f"front: {', '.join(front)}."
    )
    return Figure("trade-off", alt, {"": sized(draw)})


def _stops(name: str, dial: Dial, at: Sequence[tuple[float, float]], colour: str) -> str:
    """A small dot for each τ, and a ring that the slider moves from one to the next."""
    dots = "".join(
        mark(
            "circle",
            x,
            y,
            colour,
            f"{name}, τ = {tau:g}\n"
            + "\n".join(
                f"{s.capitalize()} {percent(dial.models[name][s][i])}" for s in dial.slices
            ),
            radius=2.6,
        )
        for i, (tau, (x, y)) in enumerate(zip(dial.taus, at, strict=True))
        if i and math.isfinite(x + y)
    )
    places = json.dumps([[round(x, 1), round(y, 1)] for x, y in at])
    x, y = at[0]
    style = f"stroke:var({colour})"
    return dots + element("circle", cx=x, cy=y, r=9, class_="ring", style=style, data_places=places)


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
