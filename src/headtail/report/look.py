"""How a scheme looks: its colour shows the weighting, its shape the sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headtail.comparison.results import POPULAR

# Names of CSS variables, which page.css defines for light and dark mode: the eight colours of Okabe
# and Ito, made for colour-blind readers.
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
        symbol: marker; open, dotted or of a second shape if an earlier scheme has the same colour
            and shape.
        dash: of its line.
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
_SECOND_SHAPES = {
    "circle": "hexagon",
    "triangle-up": "triangle-down",
    "diamond": "star-diamond",
    "square": "pentagon",
}
"""The second shape of a family."""
_VARIANTS = (
    (False, ""),
    (False, "-open"),
    (True, ""),
    (True, "-open"),
    (False, "-open-dot"),
    (True, "-open-dot"),
)
"""For schemes of one colour and family: whether in the second shape, and its filling."""


def looks(schemes: list[str]) -> dict[str, Look]:
    """The look of every scheme.

    >>> look = looks(["softmax", "uniform:tail", "uniform:tail(0.5)"])
    >>> [scheme.symbol for scheme in look.values()]
    ['diamond', 'circle', 'circle-open']
    """
    chosen: dict[str, Look] = {}
    for scheme in schemes:
        look = _look(scheme)
        kind = (look.family, look.colour)
        twins = sum((other.family, other.colour) == kind for other in chosen.values())
        if look.family != "baseline":
            second, filling = _VARIANTS[twins % len(_VARIANTS)]
            shape = _SECOND_SHAPES[look.symbol] if second else look.symbol
            look = replace(look, symbol=shape + filling)
        chosen[scheme] = look
    return chosen


def families(schemes: list[str]) -> dict[str, list[str]]:
    """Schemes that are shown together: of one loss and one sampler, after the losses of their kind
    that use all labels.

    >>> families(["softmax", "uniform:tail", "within-batch:tail"])
    {'uniform': ['softmax', 'uniform:tail'], 'within-batch': ['softmax', 'within-batch:tail']}
    """
    panels: dict[str, list[str]] = {}
    for scheme in schemes:
        loss = _loss(scheme)
        family = _look(scheme).family
        same_loss = [(name, _look(name).family) for name in schemes if _loss(name) == loss]
        sampled = any(other != "exact" for _, other in same_loss)
        if family == "exact" and sampled:
            continue  # it is shown with each sampler
        title = {"exact": "all labels", "other": "other samplers"}.get(family, family)
        title = title if loss == "softmax" else f"{loss}, {title}"
        panels[title] = [name for name, other in same_loss if other == "exact"]
        panels[title] += [name for name, other in same_loss if other == family != "exact"]
    return panels


def _loss(scheme: str) -> str:
    loss, slash, name = scheme.rpartition("/")
    if slash:
        return loss
    return name if name in ("contrastive", "logistic", "hinge", "squared-hinge") else "softmax"


def _look(scheme: str) -> Look:
    sampler, colon, weighting = scheme.rpartition("/")[2].partition(":")
    name = (weighting if colon else sampler).partition("(")[0].partition("@")[0].partition("+")[0]
    if scheme == POPULAR:
        family = "baseline"
    elif not colon:
        family = "exact"
    else:
        family = next(
            (known for known in ("uniform", "within-batch") if sampler.partition("(")[0] == known),
            "other",
        )
    symbol, dash = _FAMILIES[family]
    colour = "--muted" if scheme == POPULAR else _WEIGHTINGS.get(name, "--sky")
    return Look(family, colour, symbol, dash)
