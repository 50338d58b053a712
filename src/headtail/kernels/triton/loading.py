"""Loading rows of a table and numbers per example in Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def in_table(rows, size):
    """Which rows a table of this size has. Nothing checks ids on a GPU before a kernel runs: those
    that a table does not have are neither read nor written.
    """
    return (rows >= 0) & (rows < size)


@triton.jit
def rows_of(table, rows, mask, k, d):
    """Columns k of rows; 0 beyond the table's width and where `mask` is False. int64: 100M rows of
    512 pass 2^31.
    """
    place = table + rows.to(tl.int64)[:, None] * d + k[None, :]
    return tl.load(place, mask=mask[:, None] & (k < d)[None, :], other=0.0)


@triton.jit
def number_of(values, i, mask, scalar: tl.constexpr):
    """The number of example i in float32, or the scalar that all share; 0 where `mask` is False."""
    if scalar:
        return tl.where(mask, values, 0.0)
    else:
        return tl.load(values + i, mask=mask, other=0.0).to(tl.float32)
