"""The sampled softmax of ranks that share a label table, in three stages with all gradients:

1. `own_terms`: each rank scores the draws and positives that it holds;
2. `sum_terms`: once the highest term of each example is known, it sums its own;
3. `own_gradients`: once the sums of all ranks are known, it computes the loss, which is the same on
   all of them, and the gradients of what it scored.

What travels in between is in `Terms`, and is up to the caller. Every size follows from those of the
arguments, and nothing is read back to the host: the stages can be captured in CUDA graphs. The
functions here are plain PyTorch; `kernels/triton/staged.py` has their twins.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from headtail.core.lookup import written_out
from headtail.kernels.dispatch import staged_kernels
from headtail.kernels.gradient import LossGradients, Terms
from headtail.rows.rounding import widened


class Scored(NamedTuple):
    """What a rank scores, in the order of the stages' arguments.

    Attributes:
        input: `[p, d]` hidden states of all ranks.
        table: `[n, d]` rows of this rank.
        bias: `[n, 1]`, or None.
        positive: `[p]` the row of each example's positive; −1 where another rank holds it.
        negatives: `[m]` rows of the draws.
    """

    input: Float[Tensor, "p d"]
    table: Float[Tensor, "n d"]
    bias: Float[Tensor, "n 1"] | None
    positive: Int64[Tensor, " p"]
    negatives: Int64[Tensor, " m"]


class Room(NamedTuple):
    """Tensors to compute results in, used where shape and dtype fit.

    Attributes:
        total: the loss.
        grad_input: `[p, d]`.
        grad_rows: `[p + m, d]`.
    """

    total: Tensor
    grad_input: Tensor
    grad_rows: Tensor


def stages_for(scored: Scored) -> Any:
    """The module whose stages are fastest for these tensors."""
    tables = [scored.table] if scored.bias is None else [scored.table, scored.bias]
    return staged_kernels(scored.input, *tables) or sys.modules[__name__]


def own_terms(
    scored: Scored,
    label: Int64[Tensor, " p"] | None,
    ids: Int64[Tensor, " m"],
    a: Float64[Tensor, " p"] | float,
    b: Float64[Tensor, " m"] | float,
) -> Terms:
    """f_y' + b of each draw, the highest of each example, and f_y and a of own positives.

    Args:
        scored: hidden states and rows.
        label: `[p]` and
        ids: `[m]`: where they agree, a draw does not count. Without labels, all do.
        a: log-weights of examples; those of other ranks' positives may be NaN.
        b: log-weights of draws; −inf for a place that holds none.
    """
    input, table, bias, positive, negatives = scored
    own = positive >= 0
    rows = positive.clamp(min=0)
    terms = widened(input @ table[negatives].to(input.dtype).T)
    f_y = (widened(input) * widened(table[rows].to(input.dtype))).sum(-1)
    if bias is not None:
        terms = terms + bias[negatives, 0]
        f_y = f_y + bias[rows, 0]
    terms = terms + written_out(b, negatives).to(terms.dtype)
    if label is not None:
        terms = terms.masked_fill(label[:, None] == ids, -torch.inf)
    known = torch.zeros(3, len(input), dtype=torch.float64, device=input.device)
    known[0] = torch.where(own, f_y.double(), 0.0)
    known[1] = torch.where(own, written_out(a, positive), 0.0)
    return Terms(terms[None], terms.amax(1), known)


def sum_terms(terms: Terms) -> None:
    """Σ e^(term − highest) of the own draws, into `known`; `highest` is now that of all ranks."""
    terms.known[2] = (terms.each[0] - _finite(terms.highest)[:, None]).exp().sum(1)


def own_gradients(
    scored: Scored, terms: Terms, scale: Float[Tensor, " p"] | float, room: Room | None = None
) -> LossGradients:
    """log(1 + e^(a − f_y) Σ e^(f_y' + b)), and gradients of Σ scale · loss by what is the rank's
    own; `known` now holds the sums over all ranks.

    Results are in `room` only where a kernel computes them.
    """
    input, table, _, positive, negatives = scored
    f_y, a, total = terms.known
    gap = total.log() + _finite(terms.highest).double() + (a - f_y)
    loss = torch.logaddexp(gap, torch.zeros_like(gap))
    scale = scale.double() if isinstance(scale, Tensor) else torch.full_like(gap, scale)
    slope = scale * gap.sigmoid()
    dtype = terms.each.dtype
    share = torch.where((total == 0) | (scale == 0), 0.0, slope / total).to(dtype)
    each = (terms.each[0] - _finite(terms.highest)[:, None]).exp()
    coefs = torch.where(scale[:, None] == 0, 0.0, share[:, None] * each)
    own = (positive >= 0) & (scale != 0)
    grad_y = torch.where(own, -slope, 0.0).to(dtype)[:, None]
    wide = widened(input)
    drawn = widened(table[negatives].to(input.dtype))
    held = widened(table[positive.clamp(min=0)].to(input.dtype))
    counted = torch.where((scale == 0)[:, None], 0.0, wide)
    return LossGradients(
        loss.to(dtype),
        coefs @ drawn + grad_y * held,
        torch.cat([grad_y[:, 0], coefs.sum(0)]),
        torch.cat([grad_y * counted, coefs.T @ counted]),
        torch.where(scale == 0, 0.0, loss * scale).sum().to(dtype),
    )


def _finite(highest: Tensor) -> Tensor:
    """Where no rank has a term, e^(−∞ − 0) is 0, and e^(−∞ + ∞) would not be a number."""
    return highest.masked_fill(highest == -torch.inf, 0.0)
