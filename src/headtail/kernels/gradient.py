"""What kernels hand over: gradients as entries of rows, and a loss with all its gradients."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor


class RowGradient(NamedTuple):
    """A row-sparse gradient as entries: row `rows[e]` gets `coefs[e] · values[points[e]]`; rows may
    repeat, their entries add up.

    Attributes:
        rows: `[n]`; −1 marks padding, which counts nowhere.
        values: `[s, d]`.
        points: `[n]` which of the values each entry takes; None if entry e takes the e-th.
        coefs: `[n]` factors; None for 1.
        grouped: whether entries of the same row are neighbours already.
    """

    rows: Int64[Tensor, " n"]
    values: Float[Tensor, "s d"]
    points: Int64[Tensor, " n"] | None = None
    coefs: Float[Tensor, " n"] | None = None
    grouped: bool = False


class LossGradients(NamedTuple):
    """A sampled loss and, taken while the numbers are at hand, the gradients of Σ scale · loss.

    Attributes:
        loss: `[b]` of each example.
        of_input: `[b, d]`.
        of_scores: `[b + m]` with respect to the scores of positives, then of shared negatives
            (summed over examples); `[b + b·m]` where each example has its own.
        of_rows: `[b + m, d]` with respect to the rows of positives and shared negatives; None where
            each example has its own: then it is `of_scores` times the inputs.
        total: Σ scale · loss, where the kernel has taken it too.
    """

    loss: Float[Tensor, " b"]
    of_input: Float[Tensor, "b d"]
    of_scores: Float[Tensor, " n"]
    of_rows: Float[Tensor, "n d"] | None
    total: Float[Tensor, ""] | None = None


class Drop(NamedTuple):
    """Which numbers are dropped: those whose noise is below `share`; the others are multiplied by
    `scale`.

    Attributes:
        noise: a random byte for each number, or a seed to take it from.
        share: in the units of the noise.
        scale: so that the mean stays.
    """

    noise: Tensor
    share: float
    scale: float


LOGISTIC, HINGE, SQUARED_HINGE, CONTRASTIVE = range(4)
"""The pieces of decoupled losses that kernels know."""
