"""Products of hidden states with all labels of the blocks that they visit, on CUDA by Triton: rows
are not copied.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.triton.loading import in_table

LABELS = 32
"""Rows that a program holds at a time,"""
WIDTH = 128
"""columns,"""
MEMBERS = 16
"""and hidden states; a matrix product needs at least 16."""


def products(x: Tensor, rows: Tensor, start: Tensor, size: Tensor, most: int) -> Tensor:
    """`[G, T, g, S]` ⟨x, w⟩ of a group's hidden states and the labels of its blocks; 0 after the
    last label of a block.

    Args:
        x: `[G, g, k]` hidden states, float32.
        rows: `[L, k]` labels in block order, float32.
        start: `[G, T]` where each block begins in `rows`, and
        size: `[G, T]` the number of its labels.
        most: S, the largest block.
    """
    groups, share, k = x.shape
    visits = start.shape[1]
    out = x.new_empty(groups, visits, share, most)
    grid = groups * visits, triton.cdiv(most, LABELS)
    sizes = {"alone": share == 1, "labels": LABELS, "width": WIDTH, "members": MEMBERS}
    _products[grid](
        x.contiguous(), rows, len(rows), start.contiguous(), size.contiguous(), out,
        visits, share, most, k,
        **sizes, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _products(
    x_at, rows_at, num_rows, start_at, size_at, out_at, visits, share, most, k,
    alone: tl.constexpr, labels: tl.constexpr, width: tl.constexpr, members: tl.constexpr,
):  # fmt: skip
    """Some labels of one visit, for all hidden states of its group."""
    visit = tl.program_id(0).to(tl.int64)
    label = tl.program_id(1) * labels + tl.arange(0, labels)
    row = tl.load(start_at + visit) + label
    held = (label < tl.load(size_at + visit)) & in_table(row, num_rows)
    x_at += visit // visits * share * k
    out_at += visit * share * most
    if alone:
        total = tl.zeros([labels], tl.float32)
        for first in range(0, k, width):
            column = first + tl.arange(0, width)
            x = tl.load(x_at + column, mask=column < k, other=0.0)
            mask = held[:, None] & (column < k)[None, :]
            w = tl.load(rows_at + row[:, None] * k + column[None, :], mask=mask, other=0.0)
            total += tl.sum(w * x[None, :], 1)
        tl.store(out_at + label, total, mask=label < most)
    else:
        for begin in range(0, share, members):
            member = begin + tl.arange(0, members)
            sums = tl.zeros([members, labels], tl.float32)
            for first in range(0, k, width):
                column = first + tl.arange(0, width)
                mask_x = (member < share)[:, None] & (column < k)[None, :]
                x = tl.load(x_at + member[:, None] * k + column[None, :], mask=mask_x, other=0.0)
                mask = held[:, None] & (column < k)[None, :]
                w = tl.load(rows_at + row[:, None] * k + column[None, :], mask=mask, other=0.0)
                sums = tl.dot(x, tl.trans(w), sums, input_precision="ieee")
            place = member[:, None] * most + label[None, :]
            inside = (member < share)[:, None] & (label < most)[None, :]
            tl.store(out_at + place, sums, mask=inside)


def fits(x: Tensor, rows: Tensor) -> bool:
    """Whether the kernel supports these tensors."""
    return x.dtype == rows.dtype == torch.float32 and rows.is_contiguous()
