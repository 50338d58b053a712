"""Scores and gradients for per-example negatives, on CUDA by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from headtail.kernels.triton.loading import in_table, number_of, rows_of

OWN_TILES = {"rows": 16, "block_d": 256, "num_warps": 4}


@triton.jit
def own_scores(x, table, size, negatives, scores, m, d, rows: tl.constexpr, block_d: tl.constexpr):
    """f_j = x · w_j for some draws of one example; NaN where the table has no such row."""
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * rows + tl.arange(0, rows)
    drawn = tl.load(negatives + i * m + j, mask=j < m, other=0)
    exists = in_table(drawn, size)
    products = tl.zeros((rows, block_d), tl.float32)
    for start in range(0, d, block_d):
        k = start + tl.arange(0, block_d)
        x_i = tl.load(x + i * d + k, mask=k < d, other=0.0)
        w = rows_of(table, drawn, (j < m) & exists, k, d).to(x_i.dtype).to(tl.float32)
        products += w * x_i.to(tl.float32)[None, :]
    f = tl.where(exists, tl.sum(products, 1), float("nan"))
    tl.store(scores + i * m + j, f, mask=j < m)


@triton.jit
def own_input(
    table, size, positive, negatives, scale, coefs, grad_positive, grad_input, m, d,
    scalar_scale: tl.constexpr, rows: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Σ_j c_j w_j and the positive's row times its coefficient, for some columns of one example."""
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * block_d + tl.arange(0, block_d)
    g = tl.zeros((rows, block_d), tl.float32)
    for start in range(0, m, rows):
        j = start + tl.arange(0, rows)
        drawn = tl.load(negatives + i * m + j, mask=j < m, other=0)
        w = rows_of(table, drawn, (j < m) & in_table(drawn, size), k, d).to(tl.float32)
        g += tl.load(coefs + i * m + j, mask=j < m, other=0.0)[:, None] * w
    y = tl.load(positive + i)
    w_y = tl.load(table + y * d + k, mask=(k < d) & in_table(y, size), other=0.0).to(tl.float32)
    whole = tl.sum(g, 0) + tl.load(grad_positive + i) * w_y
    s = number_of(scale, i, i >= 0, scalar_scale)
    tl.store(grad_input + i * d + k, tl.where(s == 0, 0.0, whole), mask=k < d)
