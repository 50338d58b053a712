"""The values that kernels return: gradients as entries of rows, and a loss with its gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int32, Int64
from torch import Tensor


class RowGradient(NamedTuple):
    """A row-sparse gradient as entries: row `rows[e]` gets `coefs[e] · values[points[e]]`. Rows may
    repeat; their entries add up.

    Attributes:
        rows: `[n]`; −1 marks padding, which has no effect.
        values: `[s, d]`.
        points: `[n]` index of each entry's value; None if entry e takes the e-th.
        coefs: `[n]` factors; None for 1.
        grouped: whether entries of the same row are neighbours already.
    """

    rows: Int64[Tensor, " n"]
    values: Float[Tensor, "s d"]
    points: Int64[Tensor, " n"] | None = None
    coefs: Float[Tensor, " n"] | None = None
    grouped: bool = False


class RowCounters:
    """A counter for each row of one table, zero between uses: scratch memory that belongs to the
    table, so that a step neither allocates nor reads anything of the table's size.
    """

    def __init__(self) -> None:
        self._counts: Tensor | None = None

    def zeros(self, num_rows: int, device: torch.device) -> Int32[Tensor, " num_rows1"]:
        """`[num_rows + 1]` zeros; whoever changes them sets them to zero again."""
        counts = self._counts
        if counts is None or len(counts) != num_rows + 1 or counts.device != device:
            counts = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
            self._counts = counts
        return counts


class LossGradients(NamedTuple):
    """A sampled loss and the gradients of Σ scale · loss, computed in the same pass.

    Attributes:
        loss: `[b]` of each example.
        grad_input: `[b, d]`.
        grad_scores: `[b + m]` with respect to the scores of positives, then of shared negatives
            (summed over examples); `[b + b·m]` for per-example negatives. A kernel may leave it out
            (None) where there are neither biases nor per-example negatives.
        grad_rows: `[b + m, d]` with respect to the rows of positives and shared negatives; None for
            per-example negatives, where it is `grad_scores` times the inputs.
        total: Σ scale · loss, where the kernel computes it too.
        rows: `[b + m]` which rows `grad_rows` belongs to, where the kernel lists them.
    """

    loss: Float[Tensor, " b"]
    grad_input: Float[Tensor, "b d"]
    grad_scores: Float[Tensor, " n"] | None
    grad_rows: Float[Tensor, "n d"] | None
    total: Float[Tensor, ""] | None = None
    rows: Int64[Tensor, " n"] | None = None


class Terms(NamedTuple):
    """What a rank has of the sampled softmax between its stages (`losses/staged.py`).

    Attributes:
        each: `[s, p, m]` whose first part holds f + b of each own draw; −inf where it does not
            count.
        highest: `[p]` the highest of them; −inf where there is none.
        known: `[3, p]` f_y and a of own positives, 0 for others, and the sum of own terms.
    """

    each: Float[Tensor, "s p m"]
    highest: Float[Tensor, " p"]
    known: Float64[Tensor, "3 p"]


class Drop(NamedTuple):
    """Which numbers a dropout drops: those with noise below `share`. The others are multiplied by
    `scale`.

    Attributes:
        noise: a random byte for each number, or the seed that it is computed from.
        share: in the units of the noise.
        scale: keeps the mean.
    """

    noise: Tensor
    share: float
    scale: float


LOGISTIC, HINGE, SQUARED_HINGE, CONTRASTIVE = range(4)
"""Codes of the binary losses that kernels know."""
