"""Pieces of decoupled losses: one binary loss for the positive and one for each negative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from headtail.errors import check_number
from headtail.kernels.gradient import CONTRASTIVE, HINGE, LOGISTIC, SQUARED_HINGE


@dataclass(frozen=True)
class Piece:
    r"""The two binary losses of a decoupled loss: $\phi$ on the positive logit, $\varphi$ on minus
    each negative logit.

    Attributes:
        name: for people.
        positive: φ(z), applied to f_y.
        negative: ϕ(z), applied to −f_y'.
        cosine: whether logits must be cosines.
        code: its (number, margin) in kernels; None for pieces of your own.
    """

    name: str
    positive: Callable[[Tensor], Tensor]
    negative: Callable[[Tensor], Tensor]
    cosine: bool = False
    code: tuple[int, float] | None = None


def _logistic(z: Tensor) -> Tensor:
    return -F.logsigmoid(z)


def _hinge(z: Tensor) -> Tensor:
    return F.relu(1 - z)


def _squared_hinge(z: Tensor) -> Tensor:
    return F.relu(1 - z) ** 2


logistic = Piece("logistic", _logistic, _logistic, code=(LOGISTIC, 0.0))
"""log(1 + e^−z) on both sides."""
hinge = Piece("hinge", _hinge, _hinge, code=(HINGE, 0.0))
"""max(0, 1 − z) on both sides."""
squared_hinge = Piece("squared hinge", _squared_hinge, _squared_hinge, code=(SQUARED_HINGE, 0.0))
"""max(0, 1 − z)² on both sides."""


@dataclass(frozen=True)
class _NegativeCosine:
    margin: float

    def __call__(self, z: Tensor) -> Tensor:
        return F.relu(-z - self.margin) ** 2 / 2


def _positive_cosine(z: Tensor) -> Tensor:
    return (1 - z) ** 2 / 2


def contrastive(margin: float = 0.0) -> Piece:
    r"""The contrastive loss of Hadsell et al. (2006) at the distance 1 − cos: ½(1 − cos)² on the
    positive, and ½ max(0, cos − margin)² on negatives.

    The squares matter. With margin 0, a label of probability P and weight ρ on it as a negative,
    the cosine that costs least is P / (P + ρ(1 − P)): the loss learns probabilities. Without them
    (torch's CosineEmbeddingLoss) it is 1 for labels with P > ρ(1 − P) and 0 for all others, so
    nothing is learnt about the others: among many labels, most of the time all of them.

    >>> contrastive().negative(torch.tensor([-0.4, 0.4]))  # of minus the cosine
    tensor([0.0800, 0.0000])
    """
    check_number("margin", margin, low=-1, high=1)
    return Piece(
        "contrastive",
        _positive_cosine,
        _NegativeCosine(margin),
        cosine=True,
        code=(CONTRASTIVE, margin),
    )
