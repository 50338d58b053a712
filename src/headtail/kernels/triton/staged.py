"""The stages of the sampled softmax of ranks that share a label table (`losses/staged.py`), on CUDA
by Triton: scores and gradients as for one process, and one launch per stage in between.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import LossGradients, Terms
from headtail.kernels.triton.loading import in_table, number_of
from headtail.kernels.triton.loss import (
    SCORE_TILES,
    compute_gradients,
    compute_scores,
    room_for,
    splits_of,
)
from headtail.kernels.triton.loss_equation import draws, positive_score
from headtail.kernels.triton.precise import log1p


def own_terms(scored, label, ids, a, b) -> Terms:
    """f_y' + b of each draw, the highest of each example, and f_y and a of own positives."""
    input, table, bias, positive, negatives = scored
    n, d = input.shape
    m = len(negatives)
    like = {"dtype": torch.float32, "device": input.device}
    each = torch.empty(splits_of(SCORE_TILES, n, m, d), n, m, **like)
    highest = torch.empty(n, **like)
    known = torch.empty(3, n, dtype=torch.float64, device=input.device)
    compute_scores(input, table, negatives, each, _exact())
    a, b = (t if isinstance(t, float) else t.contiguous() for t in (a, b))
    block_d, block_m = _block(d), _block(m)
    _own_terms[(n,)](
        input, table, len(table), bias, positive, negatives, ids, label, a, b,
        each, each.stride(0), highest, known, n, m, d,
        scalar_a=isinstance(a, float), scalar_b=isinstance(b, float), splits=len(each),
        block_d=block_d, blocks_d=triton.cdiv(d, block_d),
        block_m=block_m, blocks_m=triton.cdiv(m, block_m), num_warps=_warps(d, m),
    )  # fmt: skip
    return Terms(each, highest, known)


def sum_terms(terms: Terms) -> None:
    """Σ e^(term − highest) of the own draws, into `known`."""
    _, n, m = terms.each.shape
    block = _block(m)
    _sum_terms[(n,)](
        terms.each, terms.highest, terms.known, n, m,
        block=block, blocks=triton.cdiv(m, block), num_warps=_warps(0, m),
    )  # fmt: skip


def own_gradients(scored, terms: Terms, scale: Tensor | float, room=None) -> LossGradients:
    """The loss, and the gradients of Σ scale · loss by what is the rank's own."""
    input, table, _, positive, negatives = scored
    n, d = input.shape
    m = len(negatives)
    like = {"dtype": torch.float32, "device": input.device}
    loss = torch.empty(n, **like)
    to_total, to_input, to_rows = room or (None, None, None)
    total = _room(to_total, (), like)
    grad_input = _room(to_input, (n, d), like)
    grad_scores = torch.empty(n + m, **like)
    grad_rows = _room(to_rows, (n + m, d), like)
    grad_y = grad_scores[:n]
    partial, tickets = room_for(n, m, d, input.device)
    scale = scale.contiguous() if isinstance(scale, Tensor) else float(scale)
    block_d, block_m = _block(d), _block(m)
    _coefficients[(n,)](
        input, positive, len(table), scale, terms.each, terms.highest, terms.known, loss, grad_y,
        grad_rows, tickets, n, m, d, len(tickets), scalar_scale=isinstance(scale, float),
        block_d=block_d, blocks_d=triton.cdiv(d, block_d),
        block_m=block_m, blocks_m=triton.cdiv(m, block_m), num_warps=_warps(d, m),
    )  # fmt: skip
    sums = grad_input, grad_rows[n:], grad_scores[n:], loss, total
    compute_gradients(
        input, table, positive, negatives, scale, terms.each, grad_y, *sums, partial, tickets,
        False, _exact(),
    )  # fmt: skip
    return LossGradients(loss, grad_input, grad_scores, grad_rows, total)


def _room(tensor: Tensor | None, shape, like) -> Tensor:
    """This tensor, if it is there and of that type."""
    if tensor is not None and tensor.dtype == like["dtype"] and tensor.shape == shape:
        return tensor
    return torch.empty(shape, **like)


def _exact() -> bool:
    """However it was set: `get_float32_matmul_precision` refuses to say after newer settings."""
    return torch.backends.cuda.matmul.fp32_precision != "tf32"


def _block(size: int) -> int:
    """Numbers that a program holds at a time."""
    return min(2048, max(16, triton.next_power_of_2(size)))


def _warps(d: int, m: int) -> int:
    return 1 if max(d, m) <= 512 else 4


@triton.jit
def _own_terms(
    x, table, size, bias, positive, negatives, ids, label, a, b, each, stride, highest, known,
    n, m, d, scalar_a: tl.constexpr, scalar_b: tl.constexpr, splits: tl.constexpr,
    block_d: tl.constexpr, blocks_d: tl.constexpr,
    block_m: tl.constexpr, blocks_m: tl.constexpr,
):  # fmt: skip
    """One example: its scores become terms in place."""
    i = tl.program_id(0).to(tl.int64)
    y = tl.load(positive + i)
    own = in_table(y, size)
    f_y = positive_score(i, y, own, x, table, bias, d, block_d, blocks_d)
    a_i = a if scalar_a else tl.load(a + i, mask=own, other=0.0)
    # Selected, never multiplied: hidden states of examples that do not count may be infinite.
    tl.store(known + i, tl.where(own, f_y, 0.0).to(tl.float64))
    tl.store(known + n + i, tl.where(own, a_i, 0.0).to(tl.float64))
    top = -float("inf")
    for block in range(blocks_m):
        j = block * block_m + tl.arange(0, block_m)
        f, b_j, counts = draws(
            i, j, each, stride, bias, size, negatives, ids, b, label, None, m,
            scalar_b, splits, True, True,
        )  # fmt: skip
        term = tl.where(counts, f + b_j, -float("inf"))
        tl.store(each + i * m + j, term, mask=j < m)
        top = tl.maximum(top, tl.max(term))
    tl.store(highest + i, top)


@triton.jit
def _finite(top):
    """Where no rank has a term, e^(−∞ − 0) is 0."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def _sum_terms(each, highest, known, n, m, block: tl.constexpr, blocks: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    top = _finite(tl.load(highest + i))
    total = 0.0
    for number in range(blocks):
        j = number * block + tl.arange(0, block)
        term = tl.load(each + i * m + j, mask=j < m, other=-float("inf"))
        total += tl.sum(tl.exp(term - top))
    tl.store(known + 2 * n + i, total.to(tl.float64))


@triton.jit
def _coefficients(
    x, positive, size, scale, each, highest, known, loss, grad_positive, grad_rows, tickets,
    n, m, d, tiles, scalar_scale: tl.constexpr,
    block_d: tl.constexpr, blocks_d: tl.constexpr,
    block_m: tl.constexpr, blocks_m: tl.constexpr,
):  # fmt: skip
    """One example: its loss; its terms become coefficients in place."""
    i = tl.program_id(0).to(tl.int64)
    for place in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tl.store(tickets + place, 0)  # counted in the launch that follows
    own = in_table(tl.load(positive + i), size)
    s = number_of(scale, i, i >= 0, scalar_scale)
    f_y = tl.load(known + i)
    a_i = tl.load(known + n + i)
    total = tl.load(known + 2 * n + i)
    top = _finite(tl.load(highest + i))
    gap = (tl.log(total) + top + (a_i - f_y)).to(tl.float32)
    tl.store(loss + i, tl.maximum(gap, 0.0) + log1p(tl.exp(-tl.abs(gap))))
    slope = s / (1 + tl.exp(-gap))
    share = tl.where((total == 0) | (s == 0), 0.0, slope / total.to(tl.float32))
    for block in range(blocks_m):
        j = block * block_m + tl.arange(0, block_m)
        term = tl.load(each + i * m + j, mask=j < m, other=-float("inf"))
        coef = tl.where(s == 0, 0.0, tl.exp(term - top) * share)
        tl.store(each + i * m + j, coef, mask=j < m)
    grad_y = tl.where(own & (s != 0), -slope, 0.0)
    tl.store(grad_positive + i, grad_y)
    for block in range(blocks_d):
        k = block * block_d + tl.arange(0, block_d)
        x_i = tl.load(x + i * d + k, mask=k < d, other=0.0).to(tl.float32)
        gradient = tl.where(own & (s != 0), grad_y * x_i, 0.0)
        tl.store(grad_rows + i * d + k, gradient, mask=k < d)
