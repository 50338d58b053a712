"""The decoupled losses over all labels from their scores, on CUDA by Triton: one pass over the
scores for the loss, and one that replaces them by their gradient.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.triton.exact import BLOCK, PROGRAMS
from headtail.kernels.triton.loading import in_table
from headtail.kernels.triton.loss_equation import binary_losses
from headtail.kernels.triton.precise import exp


def decoupled(
    scores: Tensor,
    bias: Tensor | None,
    label: Tensor,
    scale: Tensor,
    *,
    a: Tensor | None,
    b: Tensor | None,
    piece: int,
    margin: float,
) -> tuple[Tensor, None]:
    """`[c]` scale · (φ(f_y) + Σ_{y' ≠ y} e^(a + b_y') ϕ(−f_y')) of each row, f = score + bias; and
    nothing else, because its gradient needs nothing else.

    Args:
        scores: `[c, w]`, a row contiguous.
        bias: `[w]` float32, or None.
        label: `[c]` the y of each row; one that does not exist makes the loss NaN.
        scale: `[c]` float32; rows where it is 0 do not count, whatever they hold.
        a: `[c]` float32 log-weights of rows, or None for 0.
        b: `[w]` float32 log-weights of labels, or None for 0.
        piece: number of the pieces φ and ϕ.
        margin: that of the pieces.
    """
    rows, columns = scores.shape
    blocks = triton.cdiv(columns, BLOCK)
    parts = min(blocks, triton.cdiv(PROGRAMS, rows))
    width = triton.cdiv(blocks, parts) * BLOCK
    loss = scores.new_empty(rows, parts, dtype=torch.float32)
    _losses[(rows, parts)](
        scores, bias, label, scale, a, b, loss, columns, scores.stride(0), width, margin,
        piece=piece, block=BLOCK, num_warps=8,
    )  # fmt: skip
    return loss.sum(1), None


def decoupled_gradient_(
    scores: Tensor,
    bias: Tensor | None,
    label: Tensor,
    scale: Tensor,
    kept: None,
    grad: Tensor,
    *,
    a: Tensor | None,
    b: Tensor | None,
    piece: int,
    margin: float,
) -> None:
    """Replace scores by the gradient of grad · Σ decoupled by them.

    Args:
        scores: as for `decoupled`, and so are
        bias: what is added to the scores,
        label: the y of each row,
        scale: what its loss is multiplied by,
        kept: None, as `decoupled` returned it beside the losses,
        a: log-weights of rows,
        b: log-weights of labels,
        piece: number of the pieces, and
        margin: theirs.
        grad: one number on the device.
    """
    rows, columns = scores.shape
    _gradient[(rows, triton.cdiv(columns, BLOCK))](
        scores, bias, label, scale, a, b, grad, columns, scores.stride(0), margin,
        piece=piece, block=BLOCK, num_warps=8,
    )  # fmt: skip


@triton.jit
def _losses(
    scores, bias, label, scale, a, b, loss, columns, stride, width, margin,
    piece: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    y = tl.load(label + row)
    weight = tl.load(scale + row)
    scores += row.to(tl.int64) * stride
    added = tl.zeros([block], tl.float32)
    for start in range(part * width, tl.minimum((part + 1) * width, columns), block):
        column = start + tl.arange(0, block)
        there = column < columns
        value, _ = _terms(scores, bias, a, b, y, row, column, there, piece, margin)
        added += tl.where(there, value, 0.0)
    total = tl.where(in_table(y, columns), tl.sum(added), float("nan"))
    place = row * tl.num_programs(1) + part
    tl.store(loss + place, tl.where(weight == 0, 0.0, total * weight))


@triton.jit
def _gradient(
    scores, bias, label, scale, a, b, grad, columns, stride, margin,
    piece: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < columns
    scores += row.to(tl.int64) * stride
    y = tl.load(label + row)
    _, slope = _terms(scores, bias, a, b, y, row, column, there, piece, margin)
    weight = tl.load(scale + row)
    change = tl.where(weight == 0, 0.0, slope * (weight * tl.load(grad).to(tl.float32)))
    tl.store(scores + column, change.to(scores.dtype.element_ty), mask=there)


@triton.jit
def _terms(
    scores, bias, a, b, y, row, column, there, piece: tl.constexpr, margin
):  # fmt: skip
    """φ(f) of the label y, ρ·ϕ(−f) of all others, and their derivatives by f."""
    f = tl.load(scores + column, mask=there, other=0.0).to(tl.float32)
    if bias is not None:
        f += tl.load(bias + column, mask=there, other=0.0)
    is_label = column == y
    value, slope = binary_losses(tl.where(is_label, -f, f), piece, margin)
    slope = tl.where(is_label, -slope, slope)
    if piece == 3:
        value = tl.where(is_label, 0.5 * (1 - f) * (1 - f), value)
        slope = tl.where(is_label, f - 1, slope)
    if a is not None or b is not None:
        log_weight = tl.zeros_like(f)
        if a is not None:
            log_weight += tl.load(a + row)
        if b is not None:
            log_weight += tl.load(b + column, mask=there, other=0.0)
        # The label's own weight may be infinite: it is never multiplied by.
        w = exp(tl.where(is_label, 0.0, log_weight))
        value *= w
        slope *= w
    return value, slope
