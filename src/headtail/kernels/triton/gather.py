"""Rows of a table copied to a GPU's own memory by Triton, each read once."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024
"""Columns per program: few enough that a thread has all its loads under way at once."""


def gather(table: Tensor, bias: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """`[n, d]` rows of a table and `[n, 1]` their biases.

    A row that the table does not have is NaN, so that the loss shows it.

    Args:
        table: `[T, d]`, contiguous, in the memory of a GPU or in memory of the host that it sees.
        bias: `[T, 1]` of the same kind, or None.
        rows: `[n]` int64, contiguous, on the GPU.
    """
    n = len(rows)
    num_rows, d = table.shape
    near = torch.empty(n, d, dtype=table.dtype, device=rows.device)
    near_bias = None
    if bias is not None:
        near_bias = torch.empty(n, 1, dtype=bias.dtype, device=rows.device)
    columns = min(COLUMNS, triton.next_power_of_2(d))
    if n:
        _gather[n, triton.cdiv(d, columns)](
            table, bias, rows, near, near_bias, num_rows, d, columns=columns
        )
    return near, near_bias


@triton.jit
def _gather(table, bias, rows, near, near_bias, num_rows, d, columns: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    row = tl.load(rows + entry)
    there = (row >= 0) & (row < num_rows)
    values = tl.load(table + row * d + column, mask=there & (column < d), other=float("nan"))
    tl.store(near + entry * d + column, values, mask=column < d)
    if bias is not None:
        value = tl.load(bias + row, mask=there, other=float("nan"))
        tl.store(near_bias + entry, value, mask=tl.program_id(1) == 0)
