"""The sampled losses and their gradients on CUDA by Triton, in three launches:

1. scores F = X·Wᵀ, in tiles (`products`);
2. losses and coefficients C = ∂/∂F, one example per program (`loss_equation`, the only place that
   knows the equations);
3. gradients C·W of the inputs and Cᵀ·X of the negatives, in tiles (`loss_gradients`).

Scores, and then coefficients in their place, are held in a workspace of bounded size, and a large
batch goes through it part by part. Computing scores again wherever they are needed, as attention
does, would save it for one or two more matrix products, but float32 products are expensive: each
takes three of the tensor cores'. No sum depends on timing: equal inputs give equal bits.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportReturnType=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
from torch import Tensor

from headtail.kernels.gradient import LossGradients
from headtail.kernels.triton.loss_equation import equation
from headtail.kernels.triton.loss_gradients import gradients
from headtail.kernels.triton.per_example import OWN_TILES, own_input, own_scores
from headtail.kernels.triton.products import shared_scores

WORKSPACE = 2**24
"""Scores that are held at a time, 64 MiB."""
BUSY = 128
"""Programs that keep a GPU busy."""
# Tile shapes, the length of the sums computed at a time, and how to compile; tuned on an H200 with
# b = 1024, m = 256, d = 512.
SCORE_TILES = {"height": 128, "width": 64, "step": 32, "num_warps": 8, "num_stages": 4}
GRADIENT_TILES = {"height": 32, "width": 64, "step": 32, "num_warps": 4, "num_stages": 4}


def sampled_softmax(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor | None, a: Tensor | float, b: Tensor | float,
    known: Tensor | None, scale: Tensor | float, *, workspace: int = WORKSPACE,
) -> LossGradients:  # fmt: skip
    """log(1 + Σ_j e^(f_j − f_y + a + b_j)) of each example, and gradients; tensors are contiguous.

    Args:
        input: `[b, d]` float32 or bfloat16.
        table: `[T, d]` rows, taken in the precision of `input`. A row that it does not have makes
            the loss of the examples that need it NaN.
        bias: `[T]` or `[T, 1]`, or None.
        positive: `[b]` the row of each example's positive.
        negatives: `[m]` or `[b, m]` rows.
        label: `[b]` and
        ids: like `negatives`: where they agree, a draw does not count. None: no draw collides.
        a: `[b]` and
        b: like `negatives`: the log-weights; each may be one number for all.
        known: `[b, m]` further draws that do not count, or None.
        scale: `[b]` factor of each loss in the total, or one number; where it is 0, all gradients
            are 0.
        workspace: scores that are held at a time.
    """
    tensors = input, table, bias, positive, negatives, label, ids, a, b, known, scale
    return _fused(*tensors, None, 0.0, workspace)


def sampled_decoupled(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor | None, a: Tensor | float, b: Tensor | float,
    known: Tensor | None, scale: Tensor | float, piece: int, margin: float,
    *, workspace: int = WORKSPACE,
) -> LossGradients:  # fmt: skip
    """φ(f_y) + Σ_j e^(a + b_j) · ϕ(−f_j) of each example, and gradients; arguments as in
    `sampled_softmax`.

    `piece` is 0 for logistic, 1 for hinge, 2 for squared hinge, and 3 for contrastive with
    `margin`.
    """
    tensors = input, table, bias, positive, negatives, label, ids, a, b, known, scale
    return _fused(*tensors, piece, margin, workspace)


def _fused(
    input, table, bias, positive, negatives, label, ids, a, b, known, scale,
    piece, margin, workspace,
) -> LossGradients:  # fmt: skip
    n, d = input.shape
    m = negatives.shape[-1]
    shared = negatives.dim() == 1
    like = {"dtype": torch.float32, "device": input.device}
    part = min(n, max(1, workspace // m)) if shared else n
    loss = torch.empty(n, **like)
    grad_input = torch.empty(n, d, **like)
    grad_scores = torch.empty(n + negatives.numel(), **like)
    grad_rows = torch.empty(n + m, d, **like) if shared else None
    grad_positive = grad_scores[:n]
    grad_drawn = grad_scores[n:]
    total = torch.empty((), **like) if shared else None
    if shared:
        coefs = torch.empty(splits_of(SCORE_TILES, part, m, d), part, m, **like)
        partial, tickets = room_for(n, m, d, input.device)
    else:
        coefs = grad_drawn.reshape(1, n, m)
        partial = None
        tickets = None
    block_d, block_m = (min(2048, max(16, triton.next_power_of_2(size))) for size in (d, m))
    # However it was set: `get_float32_matmul_precision` refuses to say after the newer settings.
    exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    # A weighting of the caller's own may return a view.
    a, b, scale = (t if isinstance(t, float) else t.contiguous() for t in (a, b, scale))
    shared_b = isinstance(b, float) or b.dim() == 1
    for start in range(0, n, part):
        x, y, grad_y = (t[start : start + part] for t in (input, positive, grad_positive))
        s, a_here = (t if isinstance(t, float) else t[start : start + part] for t in (scale, a))
        losses = loss[start : start + part]
        per_example = (
            None if t is None else t[start : start + part] for t in (label, known, loss, grad_rows)
        )
        b_here = b if shared_b else b[start : start + part]
        compute_scores(x, table, negatives, coefs, exact)
        equation[(len(x),)](
            x, table, len(table), bias, y, negatives, ids, b_here, s, grad_y, a_here, *per_example,
            coefs, coefs.stride(0), tickets, m, d, margin, 0 if tickets is None else len(tickets),
            scalar_a=isinstance(a, float), scalar_b=isinstance(b, float),
            scalar_scale=isinstance(scale, float),
            splits=len(coefs), shared=shared, shared_b=shared_b, piece=piece,
            block_d=block_d, blocks_d=triton.cdiv(d, block_d),
            block_m=block_m, blocks_m=triton.cdiv(m, block_m),
            num_warps=1 if max(block_d, block_m) <= 512 else 4,
        )  # fmt: skip
        grad_x = grad_input[start : start + part]
        if grad_rows is None:
            own_input[n, triton.cdiv(d, OWN_TILES["block_d"])](
                table, len(table), y, negatives, s, coefs, grad_y, grad_x, m, d,
                scalar_scale=isinstance(s, float), **OWN_TILES,
            )  # fmt: skip
        else:
            sums = grad_x, grad_rows[n:], grad_drawn, losses, total
            compute_gradients(
                x, table, y, negatives, s, coefs, grad_y, *sums, partial, tickets, start > 0, exact
            )
    return LossGradients(loss, grad_input, grad_scores, grad_rows, total)


def compute_scores(x, table, negatives, scores, exact) -> None:
    """Scores of all draws, in as many partial sums as `scores` has room for."""
    n, d = x.shape
    m = negatives.shape[-1]
    if negatives.dim() == 2:
        grid = n, triton.cdiv(m, OWN_TILES["rows"])
        own_scores[grid](x, table, len(table), negatives, scores, m, d, **OWN_TILES)
        return
    down = triton.cdiv(n, SCORE_TILES["height"])
    across = triton.cdiv(m, SCORE_TILES["width"])
    shared_scores[down, across, len(scores)](
        x, table, len(table), negatives, scores, scores.stride(0), n, m, d,
        splits=len(scores), exact=exact, **SCORE_TILES,
    )  # fmt: skip


def compute_gradients(
    x, table, y, negatives, scale, coefs, grad_y, grad_input, grad_negatives, grad_scores,
    losses, total, partial, tickets, more, exact,
) -> None:  # fmt: skip
    """Gradients of inputs and negatives from coefficients, their sums, and the total loss."""
    n, d = x.shape
    m = negatives.shape[-1]
    height = GRADIENT_TILES["height"]
    across = triton.cdiv(d, GRADIENT_TILES["width"])
    of_negatives = triton.cdiv(m, height) * (1 + across * len(partial))
    of_inputs = triton.cdiv(n, height) * across
    gradients[(1 + of_negatives + of_inputs,)](
        x, table, len(table), y, negatives, scale, coefs, grad_y, grad_input, grad_negatives,
        grad_scores, losses, total, partial, partial.stride(0), tickets, n, m, d,
        scalar_scale=isinstance(scale, float), more=more, splits=len(partial), exact=exact,
        **GRADIENT_TILES,
    )  # fmt: skip


def room_for(n: int, m: int, d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For parts of the negatives' gradient, and to count those that are done."""
    splits = splits_of(GRADIENT_TILES, m, d, n)
    partial = torch.empty(splits, m, d, dtype=torch.float32, device=device)
    tiles = triton.cdiv(m, GRADIENT_TILES["height"]) * triton.cdiv(d, GRADIENT_TILES["width"])
    return partial, torch.empty(tiles, dtype=torch.int32, device=device)


def splits_of(tiles: dict[str, int], height: int, width: int, length: int) -> int:
    """The number of parts into which each sum of a matrix product is cut, so that a small product
    still fills the machine.
    """
    count = triton.cdiv(height, tiles["height"]) * triton.cdiv(width, tiles["width"])
    return max(1, min(BUSY // count, length // (2 * tiles["step"])))
