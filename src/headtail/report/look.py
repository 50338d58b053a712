"""How a scheme looks: colour tells its weighting, shape its sampler, so that neither alone has to
carry it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headtail.comparison.results import POPULAR

# Colours are names of CSS variables, which page.css defines for light and for dark. Okabe and Ito's
# eight, made for colour-blind readers.
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
        symbol: marker; open, dotted or of a second shape where an earlier scheme has the same
            colour and shape.
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
_OTHER = {
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
"""For schemes of one colour and family: whether in the second shape, and how it is filled."""


def looks(schemes: list[str]) -> dict[str, Look]:
    """The look of every scheme.

    >>> look = looks(["softmax", "uniform:tail", "uniform:tail(0.5)"])
    >>> [one.symbol for one in look.values()]
    ['diamond', 'circle', 'circle-open']
    """
    found: dict[str, Look] = {}
    for scheme in schemes:
        plain = _look(scheme)
        twins = sum(
            (other.family, other.colour) == (plain.family, plain.colour) for other in found.values()
        )
        if plain.family != "baseline":
            second, filled = _VARIANTS[twins % len(_VARIANTS)]
            plain = replace(
                plain, symbol=(_OTHER[plain.symbol] if second else plain.symbol) + filled
            )
        found[scheme] = plain
    return found


def families(schemes: list[str]) -> dict[str, list[str]]:
    """Schemes that are looked at together: of one loss and one sampler, behind the all-label losses
    of their kind.

    >>> families(["softmax", "uniform:tail", "within-batch:tail"])
    {'uniform': ['softmax', 'uniform:tail'], 'within-batch': ['softmax', 'within-batch:tail']}
    """
    found: dict[str, list[str]] = {}
    for scheme in schemes:
        loss = _loss(scheme)
        family = _look(scheme).family
        same_loss = [(name, _look(name).family) for name in schemes if _loss(name) == loss]
        sampled = any(other != "exact" for _, other in same_loss)
        if family == "exact" and sampled:
            continue  # it stands beside each sampler
        title = {"exact": "all labels", "other": "other samplers"}.get(family, family)
        title = title if loss == "softmax" else f"{loss}, {title}"
        found[title] = [name for name, other in same_loss if other == "exact"]
        found[title] += [name for name, other in same_loss if other == family != "exact"]
    return found


def _loss(scheme: str) -> str:
    before, slash, name = scheme.rpartition("/")
    return (
        before
        if slash
        else name
        if name in ("contrastive", "logistic", "hinge", "squared-hinge")
        else "softmax"
    )


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
    return Look(
        family, "--muted" if scheme == POPULAR else _WEIGHTINGS.get(name, "--sky"), symbol, dash
    )
