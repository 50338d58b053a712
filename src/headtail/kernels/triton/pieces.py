"""Pieces of the losses in Triton: rows of a table, the binary losses, and functions that keep the
last digits.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(table, rows, some, k, d):
    """Columns k of some rows; 0 beyond the table's width and where a row is none of `some`. int64:
    100M rows of 512 pass 2^31.
    """
    place = table + rows.to(tl.int64)[:, None] * d + k[None, :]
    return tl.load(place, mask=some[:, None] & (k < d)[None, :], other=0.0)


@triton.jit
def per_row(values, i, some, one: tl.constexpr):
    """A number per row i in float32, or the `one` that all share; 0 where i is none of `some`."""
    if one:
        return tl.where(some, values, 0.0)
    else:
        return tl.load(values + i, mask=some, other=0.0).to(tl.float32)


@triton.jit
def piece_of(f, piece: tl.constexpr, margin):
    """ϕ(−f) and its derivative by f; of minus the positive's score, φ."""
    if piece == 0:
        value = tl.maximum(f, 0.0) + log1p(tl.exp(-tl.abs(f)))
        slope = 1 / (1 + tl.exp(-f))
    elif piece == 1:
        value = tl.maximum(1 + f, 0.0)
        slope = tl.where(f > -1, 1.0, 0.0)
    elif piece == 2:
        value = tl.maximum(1 + f, 0.0) * tl.maximum(1 + f, 0.0)
        slope = 2 * tl.maximum(1 + f, 0.0)
    else:
        value = 0.5 * tl.maximum(f - margin, 0.0) * tl.maximum(f - margin, 0.0)
        slope = tl.maximum(f - margin, 0.0)
    return value, slope


@triton.jit
def log1p(x):
    """log(1 + x) for x ≥ 0 to the last digits, where 1 + x has lost those of a small x: the
    quotient repairs the rounding.
    """
    u = 1 + x
    return tl.where(u == 1, x, tl.log(u) * (x / (u - 1)))


@triton.jit
def exp(x):
    """e^x to the last digits for a large x too: as 2^n · e^r, because the hardware's 2^(x·log2 e)
    rounds a large exponent.
    """
    n = tl.minimum(tl.maximum(tl.floor(x * 1.4426950408889634 + 0.5), -200.0), 200.0)
    # log 2 in two parts, of which n times the first is exact
    r = (x - n * 0.693145751953125) - n * 1.4286068203094172e-06
    return tl.exp(r) * tl.exp2(n)
