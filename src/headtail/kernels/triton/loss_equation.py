"""The equations of the sampled losses and their derivatives by the scores, on CUDA by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from headtail.kernels.triton.loading import in_table, number_of
from headtail.kernels.triton.precise import exp, log1p


@triton.jit
def equation(
    x, table, size, bias, positive, negatives, ids, b, scale, grad_positive, a,
    label, known, loss, grad_rows, coefs, stride, tickets, m, d, margin, tiles,
    scalar_a: tl.constexpr, scalar_b: tl.constexpr, scalar_scale: tl.constexpr,
    splits: tl.constexpr, block_d: tl.constexpr, blocks_d: tl.constexpr,
    block_m: tl.constexpr, blocks_m: tl.constexpr,
    shared: tl.constexpr, shared_b: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """One example: its scores become its loss and, in place, its coefficients. NaN where its
    positive, or a draw that counts, is a row that the table does not have.
    """
    i = tl.program_id(0).to(tl.int64)
    if tickets is not None:  # counted in the launch that follows
        for place in range(tl.program_id(0), tiles, tl.num_programs(0)):
            tl.store(tickets + place, 0)
    y = tl.load(positive + i)
    exists = in_table(y, size)
    s = number_of(scale, i, i >= 0, scalar_scale)
    a_i = number_of(a, i, i >= 0, scalar_a)
    f_y = positive_score(i, y, exists, x, table, bias, d, block_d, blocks_d)
    f_y = tl.where(exists, f_y, float("nan"))
    if piece is None:
        value_y, slope_y = _softmax(
            i, f_y, a_i, s, coefs, stride, bias, size, negatives, ids, b, label, known, m,
            scalar_b, splits, shared, shared_b, block_m, blocks_m,
        )  # fmt: skip
    else:
        value_y, slope_y = _decoupled(
            i, f_y, a_i, s, coefs, stride, bias, size, negatives, ids, b, label, known, m, margin,
            scalar_b, splits, shared, shared_b, piece, block_m, blocks_m,
        )  # fmt: skip
    tl.store(loss + i, value_y)
    grad_y = tl.where(s == 0, 0.0, -s * slope_y)
    tl.store(grad_positive + i, grad_y)
    if grad_rows is not None:
        for block in range(blocks_d):
            k = block * block_d + tl.arange(0, block_d)
            x_i = tl.load(x + i * d + k, mask=k < d, other=0.0).to(tl.float32)
            tl.store(grad_rows + i * d + k, tl.where(s == 0, 0.0, grad_y * x_i), mask=k < d)


@triton.jit
def positive_score(
    i, y, exists, x, table, bias, d, block_d: tl.constexpr, blocks_d: tl.constexpr
):  # fmt: skip
    """The score of example i with row y; of no use where the row does not exist."""
    products = tl.zeros((block_d,), tl.float32)
    for block in range(blocks_d):
        k = block * block_d + tl.arange(0, block_d)
        x_i = tl.load(x + i * d + k, mask=k < d, other=0.0)
        w_y = tl.load(table + y * d + k, mask=(k < d) & exists, other=0.0)
        products += x_i.to(tl.float32) * w_y.to(x_i.dtype).to(tl.float32)
    f_y = tl.sum(products)
    if bias is not None:
        f_y += tl.load(bias + y, mask=exists, other=0.0).to(tl.float32)
    return f_y


@triton.jit
def _softmax(
    i, f_y, a_i, s, coefs, stride, bias, size, negatives, ids, b, label, known, m,
    scalar_b: tl.constexpr, splits: tl.constexpr, shared: tl.constexpr, shared_b: tl.constexpr,
    block_m: tl.constexpr, blocks_m: tl.constexpr,
):  # fmt: skip
    """log(1 + Σ e^z) and minus its derivative by f_y; coefficients of the draws are stored."""
    top = 0.0
    rest = 0.0
    j = tl.arange(0, block_m)
    z = tl.zeros((block_m,), tl.float32)
    for block in range(blocks_m):
        j = block * block_m + tl.arange(0, block_m)
        f, b_j, counts = draws(
            i, j, coefs, stride, bias, size, negatives, ids, b, label, known, m,
            scalar_b, splits, shared, shared_b,
        )  # fmt: skip
        z = tl.where(counts, (f + b_j) + (a_i - f_y), -float("inf"))
        higher = tl.maximum(top, tl.max(z))
        rest = rest * tl.exp(top - higher) + tl.sum(tl.exp(z - higher))
        top = higher
    total = rest + tl.exp(-top)  # the positive's own term is e^0
    for block in range(blocks_m):
        if blocks_m > 1:  # a single block is still in registers
            j = block * block_m + tl.arange(0, block_m)
            f, b_j, counts = draws(
                i, j, coefs, stride, bias, size, negatives, ids, b, label, known, m,
                scalar_b, splits, shared, shared_b,
            )  # fmt: skip
            z = tl.where(counts, (f + b_j) + (a_i - f_y), -float("inf"))
        coef = tl.where(s == 0, 0.0, tl.exp(z - top) * (s / total))
        tl.store(coefs + i * m + j, coef, mask=j < m)
    return tl.where(top > 0, top + tl.log(total), log1p(rest)), rest / total


@triton.jit
def _decoupled(
    i, f_y, a_i, s, coefs, stride, bias, size, negatives, ids, b, label, known, m, margin,
    scalar_b: tl.constexpr, splits: tl.constexpr, shared: tl.constexpr, shared_b: tl.constexpr,
    piece: tl.constexpr, block_m: tl.constexpr, blocks_m: tl.constexpr,
):  # fmt: skip
    """φ(f_y) + Σ w·ϕ(−f) and minus its derivative by f_y; coefficients of the draws are stored."""
    total = 0.0
    for block in range(blocks_m):
        j = block * block_m + tl.arange(0, block_m)
        f, b_j, counts = draws(
            i, j, coefs, stride, bias, size, negatives, ids, b, label, known, m,
            scalar_b, splits, shared, shared_b,
        )  # fmt: skip
        w = exp(a_i + b_j)
        value, slope = binary_losses(f, piece, margin)
        # A masked weight may be infinite, and 0 · inf is NaN: the mask selects, never multiplies.
        total += tl.sum(tl.where(counts, w * value, 0.0))
        coef = tl.where(counts, tl.where(s == 0, 0.0, s * w * slope), 0.0)
        tl.store(coefs + i * m + j, coef, mask=j < m)
    value_y, slope_y = binary_losses(-f_y, piece, margin)
    if piece == 3:
        value_y = 0.5 * (1 - f_y) * (1 - f_y)
        slope_y = 1 - f_y
    return value_y + total, slope_y


@triton.jit
def draws(
    i, j, coefs, stride, bias, size, negatives, ids, b, label, known, m,
    scalar_b: tl.constexpr, splits: tl.constexpr, shared: tl.constexpr, shared_b: tl.constexpr,
):  # fmt: skip
    """Scores and log-weights of an example's draws j, and which of them count."""
    there = j < m
    own = i * m + j
    drawn = j if shared else own
    f = tl.load(coefs + own, mask=there, other=0.0)
    for split in tl.static_range(1, splits):
        f += tl.load(coefs + split * stride + own, mask=there, other=0.0)
    if bias is not None:
        row = tl.load(negatives + drawn, mask=there, other=0)
        f += tl.load(bias + row, mask=there & in_table(row, size), other=0.0).to(tl.float32)
    b_j = number_of(b, j if shared_b else own, there, scalar_b)
    counts = there
    if label is not None:
        counts &= tl.load(ids + drawn, mask=there, other=0) != tl.load(label + i)
    if known is not None:
        counts &= tl.load(known + own, mask=there, other=1) == 0
    return f, b_j, counts


@triton.jit
def binary_losses(f, piece: tl.constexpr, margin):
    """ϕ(−f) and its derivative by f; with f = −f_y, φ(f_y)."""
    if piece == 0:
        value = tl.maximum(f, 0.0) + log1p(tl.exp(-tl.abs(f)))
        slope = 1 / (1 + tl.exp(-f))
    elif piece == 1:
        value = _positive_part(1 + f)
        slope = tl.where(f > -1, 1.0, 0.0)
    elif piece == 2:
        value = _positive_part(1 + f) * _positive_part(1 + f)
        slope = 2 * _positive_part(1 + f)
    else:
        value = 0.5 * _positive_part(f - margin) * _positive_part(f - margin)
        slope = _positive_part(f - margin)
    return value, slope


@triton.jit
def _positive_part(f):
    """max(f, 0), and NaN for NaN: a plain maximum would hide it."""
    return tl.maximum(f, 0.0, propagate_nan=tl.PropagateNan.ALL)
