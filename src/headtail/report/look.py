"""How a scheme looks: colour tells its weighting, shape its sampler, so that neither alone has to carry it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headtail.results import POPULAR

# Colours are names of CSS variables, which page.css defines for light and for dark. Okabe and Ito's eight, made for
# colour-blind readers.
_WEIGHTINGS = {
    "constant": "--blue",
    "importance": "--green",
    "relative": "--orange",
    "tail": "--vermillion",
    "softmax": "--ink",
    "logit-adjusted": "--purple",
    "equalised": "--sky",
    "adaptive": "--yellow",
}


@dataclass(frozen=True)
class Look:
    """Colour, marker and line of one scheme.

    Attributes:
        family: "uniform", "within-batch", "exact", "other" or "baseline".
        colour: of its weighting or loss.
        symbol: marker; open or dotted where an earlier scheme has the same colour and shape.
        dash: line.
    """

    family: str
    colour: str
    symbol: str
    dash: str


_FAMILIES = {
    "uniform": ("circle", "dot"),
    "within-batch": ("triangle-up", "solid"),
    "exact": ("diamond", "dash"),
    "other": ("square", "dashdot"),
    "baseline": ("x-thin-open", "dot"),
}
_VARIANTS = ("", "-open", "-dot", "-open-dot")


def looks(schemes: list[str]) -> dict[str, Look]:
    """The look of every scheme.

    >>> look = looks(["softmax", "uniform:tail", "uniform:tail(0.5)"])
    >>> [one.symbol for one in look.values()]
    ['diamond', 'circle', 'circle-open']
    """
    found: dict[str, Look] = {}
    for scheme in schemes:
        plain = _look(scheme)
        twins = sum((other.family, other.colour) == (plain.family, plain.colour) for other in found.values())
        found[scheme] = replace(plain, symbol=plain.symbol + _VARIANTS[twins % 4] if plain.family != "baseline" else plain.symbol)
    return found


def _look(scheme: str) -> Look:
    sampler, colon, weighting = scheme.rpartition("/")[2].partition(":")
    name = (weighting if colon else sampler).partition("(")[0].partition("@")[0].partition("+")[0]
    if scheme == POPULAR:
        family = "baseline"
    elif not colon:
        family = "exact"
    else:
        family = next((known for known in ("uniform", "within-batch") if sampler.partition("(")[0] == known), "other")
    symbol, dash = _FAMILIES[family]
    return Look(family, "--muted" if scheme == POPULAR else _WEIGHTINGS.get(name, "--sky"), symbol, dash)
