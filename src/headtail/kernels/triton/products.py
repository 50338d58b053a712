"""Matrix products in tiles with the precision that torch is set to, on CUDA by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from headtail.kernels.triton.loading import in_table, rows_of


@triton.jit
def dot(u, v, total, exact: tl.constexpr):
    """total + U·V. Unless `exact`, float32 numbers are cut to 11 digits, as in torch's TF32.

    If exact, they are split into leading and trailing digits, and only trailing times trailing is
    left out. The sum is computed apart from the total, because tensor cores do not round when they
    add.
    """
    if u.dtype == tl.float32 and exact:
        u_lead = _leading(u)
        v_lead = _leading(v)
        part = tl.dot(u - u_lead, v_lead, input_precision="tf32")
        part = tl.dot(u_lead, v - v_lead, part, input_precision="tf32")
        return total + tl.dot(u_lead, v_lead, part, input_precision="tf32")
    else:
        return tl.dot(u, v, total, input_precision="tf32")


@triton.jit
def _leading(x):
    """x rounded to the 11 digits that a tensor core takes."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def part_of_sum(split, splits: tl.constexpr, length, step: tl.constexpr):
    """Where a part of a sum begins and ends."""
    span = tl.cdiv(tl.cdiv(length, step), splits) * step
    return split * span, tl.minimum(length, split * span + span)


@triton.jit
def shared_scores(
    x, table, size, negatives, scores, stride, n, m, d,
    splits: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """F = X·Wᵀ of shared negatives: a tile, summed over some of the columns; NaN where the
    table has no such row.
    """
    i = tl.program_id(0) * height + tl.arange(0, height)
    j = tl.program_id(1) * width + tl.arange(0, width)
    rows = tl.load(negatives + j, mask=j < m, other=0)
    exists = in_table(rows, size)
    f = tl.zeros((height, width), tl.float32)
    first, last = part_of_sum(tl.program_id(2), splits, d, step)
    for start in range(first, last, step):
        k = start + tl.arange(0, step)
        x_tile = rows_of(x, i, i < n, k, d)
        w_tile = rows_of(table, rows, (j < m) & exists, k, d).to(x_tile.dtype)
        f = dot(x_tile, tl.trans(w_tile), f, exact)
    # the scores, not the rows: these go straight to the tensor cores
    f = tl.where(exists[None, :], f, float("nan"))
    scores += tl.program_id(2).to(tl.int64) * stride
    place = i.to(tl.int64)[:, None] * m + j[None, :]
    tl.store(scores + place, f, mask=(i < n)[:, None] & (j < m)[None, :])
