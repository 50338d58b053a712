"""What `explain` says of margins on the positive's own score (`ArcFace`, `CosFace`)."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from headtail.core.score_margins import ScoreMargin
from headtail.implicit.names import Name
from headtail.losses import Loss

COSINES = (0.0, 0.5, 0.9)
"""Where a margin that depends on the score is shown."""


def log_rho_at(loss: Loss, score: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    """The nats by which positives with these scores must win more, because of their own score."""
    margin = loss.settings.score_margin
    if margin is None:
        return torch.zeros_like(score)
    temperature = float(loss.temperature)
    # Scores of a model have biases and rounding, which a cosine beyond 1 would come from.
    cosine = (score * temperature).clamp(-1.0, 1.0)
    return margin.log_rho(cosine, temperature)


def named_with(loss: Loss, name: Name) -> Name:
    """The name of a margin together with that on the positive's score."""
    margin = loss.settings.score_margin
    if margin is None:
        return name
    plain = name.softmax == "softmax cross-entropy"
    whole = margin.title if plain else f"{margin.title} with negatives of: {name.softmax}"
    if name.softmax is None:
        whole = None
    rho = name.rho
    if margin.constant is not None:
        factor = f"e^{margin.constant / float(loss.temperature):.3g}"
        rho = factor if rho == "1" else f"{factor} · {rho}"
    return replace(name, softmax=whole, rho=rho)


def positive_score(loss: Loss) -> str:
    """What the loss compares negatives with, in symbols."""
    margin = loss.settings.score_margin
    if margin is None or margin.constant is not None:
        return "f_y"
    return margin.formula(_scale(loss))


def notes_on(loss: Loss) -> list[str]:
    """Whether the margin is a ρ, in words."""
    margin = loss.settings.score_margin
    if margin is None:
        return []
    name = type(margin).__name__
    if margin.constant is not None:
        nats = f"{margin.constant / float(loss.temperature):.3g}"
        return [
            f"{name} is a pairwise margin: it multiplies ρ by e^({_scale(loss)}·"
            f"{margin.constant:g}) = e^{nats} for every pair, which leans to neither side."
        ]
    return [f"{name} is not a pairwise ρ: {_by_cosine(loss, margin)}"]


def _by_cosine(loss: Loss, margin: ScoreMargin) -> str:
    cosines = torch.tensor(COSINES, dtype=torch.float64)
    nats = margin.log_rho(cosines, float(loss.temperature)).tolist()
    values = ", ".join(f"{n:.3g} at {c:g}" for n, c in zip(nats, COSINES, strict=True))
    return (
        "the positive must win by a number of nats more that depends on its own cosine "
        f"({values}), whatever the label and the negative. ρ and the lean are those of the weights."
    )


def _scale(loss: Loss) -> str:
    return f"{1 / float(loss.temperature):g}"
