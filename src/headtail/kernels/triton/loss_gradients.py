"""Gradients of sampled losses with shared negatives, from coefficients C = ∂/∂F, by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from headtail.kernels.triton.loading import in_table, number_of, rows_of
from headtail.kernels.triton.products import dot, part_of_sum


@triton.jit
def gradients(
    x, table, size, positive, negatives, scale, coefs, grad_positive, grad_input, grad_negatives,
    grad_scores, losses, total, partial, stride, tickets, n, m, d,
    scalar_scale: tl.constexpr, more: tl.constexpr, splits: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """Programs of four kinds: sums of coefficients, parts of the negatives' gradient, tiles of the
    inputs' gradient, and the total loss. `more` adds to the results of earlier parts of the batch.
    """
    program = tl.program_id(0)
    down = tl.cdiv(m, height)
    across = tl.cdiv(d, width)
    if program == tl.num_programs(0) - 1:
        _total_loss(losses, scale, total, n, scalar_scale, more)
    elif program < down:
        _sum_coefs(program, coefs, grad_scores, n, m, more, height)
    elif program < down + down * across * splits:
        program -= down
        _negatives_gradient(
            program, x, coefs, grad_negatives, partial, stride, tickets, n, m, d,
            more, splits, exact, height, width, step,
        )  # fmt: skip
    else:
        program -= down + down * across * splits
        _inputs_gradient(
            program, x, table, size, positive, negatives, scale, coefs, grad_positive, grad_input,
            n, m, d, scalar_scale, exact, height, width, step,
        )  # fmt: skip


@triton.jit
def _coefs(coefs, i, j, n, m):
    """A tile of C; 0 beyond its edges."""
    place = i.to(tl.int64)[:, None] * m + j[None, :]
    return tl.load(coefs + place, mask=(i < n)[:, None] & (j < m)[None, :], other=0.0)


@triton.jit
def _sum_coefs(program, coefs, grad_scores, n, m, more: tl.constexpr, height: tl.constexpr):
    """Sums of C over examples, added to those of earlier parts of the batch."""
    j = program * height + tl.arange(0, height)
    step: tl.constexpr = 8192 // height  # only loads, so many at a time
    total = tl.zeros((step, height), tl.float32)
    for start in range(0, n, step):
        total += _coefs(coefs, start + tl.arange(0, step), j, n, m)
    sums = tl.sum(total, 0)
    if more:
        sums += tl.load(grad_scores + j, mask=j < m, other=0.0)
    tl.store(grad_scores + j, sums, mask=j < m)


@triton.jit
def _total_loss(losses, scale, total, n, scalar_scale: tl.constexpr, more: tl.constexpr):
    """Σ scale · loss, added to that of earlier parts of the batch. Losses with scale 0 are masked,
    not multiplied: they may be NaN.
    """
    sums = tl.zeros((1024,), tl.float32)
    for start in range(0, n, 1024):
        i = start + tl.arange(0, 1024)
        s = number_of(scale, i, i < n, scalar_scale)
        sums += tl.where(s == 0, 0.0, tl.load(losses + i, mask=i < n, other=0.0) * s)
    whole = tl.sum(sums)
    if more:
        whole += tl.load(total)
    tl.store(total, whole)


@triton.jit
def _negatives_gradient(
    program, x, coefs, grad_negatives, partial, stride, tickets, n, m, d,
    more: tl.constexpr, splits: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """Cᵀ·X over some of the examples; the last program to finish adds the parts up, in order."""
    place = program // splits
    split = program % splits
    across = tl.cdiv(d, width)
    j = (place // across) * height + tl.arange(0, height)
    k = (place % across) * width + tl.arange(0, width)
    g = tl.zeros((height, width), tl.float32)
    first, last = part_of_sum(split, splits, n, step)
    for start in range(first, last, step):
        i = start + tl.arange(0, step)
        x_tile = rows_of(x, i, i < n, k, d)
        # An example that does not count may hold anything, and 0 · inf is NaN. In one that counts,
        # C is NaN too.
        x_tile = tl.where(tl.abs(x_tile) < float("inf"), x_tile, 0.0)
        g = dot(tl.trans(_coefs(coefs, i, j, n, m)).to(x_tile.dtype), x_tile, g, exact)
    to = j.to(tl.int64)[:, None] * d + k[None, :]
    inside = (j < m)[:, None] & (k < d)[None, :]
    tl.store(partial + split.to(tl.int64) * stride + to, g, mask=inside)
    tl.debug_barrier()  # all of this part is written before it is counted
    if tl.atomic_add(tickets + place, 1) == splits - 1:
        g = tl.zeros((height, width), tl.float32)
        for s in range(splits):
            g += tl.load(partial + s * stride + to, mask=inside, other=0.0, cache_modifier=".cg")
        if more:
            g += tl.load(grad_negatives + to, mask=inside, other=0.0)
        tl.store(grad_negatives + to, g, mask=inside)


@triton.jit
def _inputs_gradient(
    program, x, table, size, positive, negatives, scale, coefs, grad_positive, grad_input,
    n, m, d, scalar_scale: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """C·W, and the positive's row times its coefficient."""
    across = tl.cdiv(d, width)
    dtype = x.dtype.element_ty
    i = (program // across) * height + tl.arange(0, height)
    k = (program % across) * width + tl.arange(0, width)
    y = tl.load(positive + i, mask=i < n, other=0)
    w_y = rows_of(table, y, (i < n) & in_table(y, size), k, d).to(tl.float32)
    g = tl.load(grad_positive + i, mask=i < n, other=0.0)[:, None] * w_y
    for start in range(0, m, step):
        j = start + tl.arange(0, step)
        drawn = tl.load(negatives + j, mask=j < m, other=0)
        w_tile = rows_of(table, drawn, (j < m) & in_table(drawn, size), k, d).to(dtype)
        g = dot(_coefs(coefs, i, j, n, m).to(dtype), w_tile, g, exact)
    counts = number_of(scale, i, i < n, scalar_scale) != 0
    to = i.to(tl.int64)[:, None] * d + k[None, :]
    inside = (i < n)[:, None] & (k < d)[None, :]
    tl.store(grad_input + to, tl.where(counts[:, None], g, 0.0), mask=inside)
