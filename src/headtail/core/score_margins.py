"""Margins on the score of the positive itself: ArcFace and CosFace."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from headtail.core.margins import Margin, Pairwise, Separable
from headtail.errors import check_number


class ScoreMargin(ABC):
    r"""A margin that replaces the positive's cosine by a smaller one, $\cos\theta_y \to
    t(\cos\theta_y)$. With $s = 1 / \text{temperature}$ the loss is

    $$\log\Big[1 + \sum_{y' \ne y} \rho_{yy'}\, e^{s \cos\theta_{y'} - s\, t(\cos\theta_y)}\Big].$$

    So the positive must win by $s\,(\cos\theta_y - t(\cos\theta_y))$ nats more, whatever the
    negative. Only where that is the same at every score is it a pairwise margin ρ.
    """

    title: ClassVar[str]
    """Its name in the literature."""

    @property
    def constant(self) -> float | None:
        """cos θ − t(cos θ) if it is the same at every score, else None."""
        return None

    @abstractmethod
    def moved(self, cosine: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """t(cos θ) of the positives' cosines."""

    @abstractmethod
    def formula(self, scale: str) -> str:
        """s · t(cos θ_y) in symbols, for an s written like this."""

    def log_rho(
        self, cosine: Float[Tensor, "*b"], temperature: float | Tensor
    ) -> Float[Tensor, "*b"]:
        """How many nats more the positive has to win by, at these cosines."""
        return (cosine - self.moved(cosine)) / temperature


@dataclass(frozen=True)
class CosFace(ScoreMargin):
    r"""$t(\cos\theta) = \cos\theta - m$: CosFace (Wang et al. 2018), also AM-Softmax.

    It is a pairwise margin, $\rho_{yy'} = e^{s m}$ for every pair, so it leans neither to head nor
    tail.

    Args:
        margin: m.

    >>> CosFace(0.25).moved(torch.tensor([1.0, 0.5]))
    tensor([0.7500, 0.2500])
    """

    title = "CosFace (Wang et al. 2018)"
    margin: float = 0.35

    def __post_init__(self) -> None:
        check_number("margin", self.margin, low=0, high=2)

    @property
    def constant(self) -> float:
        """m."""
        return self.margin

    def moved(self, cosine: Tensor) -> Tensor:
        """cos θ − m."""
        return cosine - self.margin

    def formula(self, scale: str) -> str:
        """s·(cos θ_y − m)."""
        return f"{scale}·(cos θ_y − {self.margin:g})"


@dataclass(frozen=True)
class ArcFace(ScoreMargin):
    r"""$t(\cos\theta) = \cos(\theta + m_2) - m_3$: ArcFace (Deng et al. 2019) with $m_3 = 0$, and
    insightface's combined margin with $m_1 = 1$.

    It is not a pairwise margin: the positive must win by $2 s \sin(m_2/2) \sin(\theta + m_2/2)$
    nats more, which depends on its own score. All labels have the same, so that it leans to
    neither side between labels that score alike.

    Where θ + m₂ > π, cos(θ + m₂) would rise again. There t is cos θ − m₂ sin m₂, as in the
    authors' original code.

    Args:
        margin: m₂, an angle in radians.
        cosine_margin: m₃.
        easy: move only positives with cos θ > 0, and leave the others as they are (`easy_margin`).

    >>> ArcFace(0.5).moved(torch.tensor([1.0, 0.0, -1.0]))
    tensor([ 0.8776, -0.4794, -1.2397])
    """

    title = "ArcFace (Deng et al. 2019)"
    margin: float = 0.5
    cosine_margin: float = 0.0
    easy: bool = False

    def __post_init__(self) -> None:
        check_number("margin", self.margin, low=0, high=1.57)  # a right angle
        check_number("cosine_margin", self.cosine_margin, low=0, high=2)

    def moved(self, cosine: Tensor) -> Tensor:
        """cos(θ + m₂) − m₃."""
        # (1 − c)(1 + c) keeps the digits that 1 − c² loses near ±1. At ±1, and where rounding goes
        # beyond, the root has no finite slope: there sin θ is the constant 0.
        square = (1 - cosine) * (1 + cosine)
        inside = square > 0
        sine = torch.where(inside, square, 1.0).sqrt().where(inside, 0.0)
        angular = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        if self.easy:
            moved = torch.where(cosine > 0, angular, cosine)
        else:
            beyond = cosine - self.margin * math.sin(self.margin)
            moved = torch.where(cosine > -math.cos(self.margin), angular, beyond)
        return moved - self.cosine_margin if self.cosine_margin else moved

    def formula(self, scale: str) -> str:
        """s·cos(θ_y + m₂), less s·m₃."""
        angular = f"cos(θ_y + {self.margin:g})"
        if not self.cosine_margin:
            return f"{scale}·{angular}"
        return f"{scale}·({angular} − {self.cosine_margin:g})"


@dataclass(frozen=True)
class Scaled(Separable):
    """A separable margin times one factor for all pairs."""

    inner: Separable
    log_factor: float

    @property
    def num_labels(self) -> int | None:
        """As many as the inner margin is for."""
        return self.inner.num_labels

    @property
    def replayable(self) -> bool:
        """If the margin is."""
        return self.inner.replayable

    def log_positive(self, ids: Tensor) -> Tensor:
        """log ρ₁ and the factor."""
        return self.inner.log_positive(ids) + self.log_factor

    def log_negative(self, ids: Tensor) -> Tensor:
        """log ρ₂."""
        return self.inner.log_negative(ids)


def scaled(margin: Margin, log_factor: float) -> Margin:
    """ρ times one factor for all pairs.

    >>> from headtail import Unit
    >>> scaled(Unit(), 1.0).log_rho(torch.tensor([0]), torch.tensor([1, 2]))
    tensor([[1., 1.]], dtype=torch.float64)
    """
    if isinstance(margin, Separable):
        return Scaled(margin, log_factor)
    return Pairwise(lambda y, others: margin.log_rho(y.reshape(-1), others) + log_factor)
