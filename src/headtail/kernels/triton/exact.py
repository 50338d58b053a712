"""What the exact softmax does with scores between its matrix products, on CUDA by Triton.

Scores are multiples of log 2: powers of 2 are computed faster than those of e.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.triton.loading import in_table

BLOCK = 4096
"""Scores at a time."""
PROGRAMS = 1024
"""Programs that keep a GPU busy: a batch of few rows has several for each."""
ROWS = 32
"""Rows whose parts one program adds up."""
LOG2_E = math.log2(math.e)


def sums(scores: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """`[c]` the largest g = score + offset of each row, and Σ 2^(g − largest); one pass.

    Args:
        scores: `[c, w]`, a row contiguous.
        offset: `[w]` what is added to the scores, or None.
    """
    high, total = _parts(scores, offset, 1.0)
    if high.shape[1] == 1:
        return high[:, 0], total[:, 0]
    largest = high.amax(1)
    return largest, (total * (high - largest[:, None]).exp2_()).sum(1)


def _parts(scores: Tensor, offset: Tensor | None, unit: float) -> tuple[Tensor, Tensor]:
    """`[c, parts]` the largest g = (score + offset) · unit of each part of a row, and its sum."""
    rows, columns = scores.shape
    blocks = triton.cdiv(columns, BLOCK)
    parts = min(blocks, triton.cdiv(PROGRAMS, rows))
    width = triton.cdiv(blocks, parts) * BLOCK
    high = scores.new_empty(rows, parts, dtype=torch.float32)
    total = torch.empty_like(high)
    _sums[(rows, parts)](
        scores,
        scores if offset is None else offset,
        high,
        total,
        columns,
        scores.stride(0),
        width,
        unit=unit,
        has_offset=offset is not None,
        block=BLOCK,
        num_warps=8,
    )
    return high, total


def cross_entropy(
    scores: Tensor, offset: Tensor | None, label: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """`[c]` scale · (log Σ_y' e^g_y' − g_y) of each row, g = score + offset, and the log of its sum
    in multiples of log 2.

    Args:
        scores: `[c, w]`, a row contiguous.
        offset: `[w]` float32, or None.
        label: `[c]` the y of each row; one that does not exist makes the loss NaN.
        scale: `[c]` float32; rows where it is 0 do not count, whatever they hold.
    """
    rows, columns = scores.shape
    high, total = _parts(scores, offset, LOG2_E)
    loss = torch.empty_like(high[:, 0])
    log_sum = torch.empty_like(loss)
    parts = high.shape[1]
    _cross_entropy[(triton.cdiv(rows, ROWS),)](
        scores,
        scores if offset is None else offset,
        label,
        scale,
        high,
        total,
        loss,
        log_sum,
        rows,
        columns,
        scores.stride(0),
        parts,
        unit=LOG2_E,
        has_offset=offset is not None,
        block=ROWS,
        width=triton.next_power_of_2(parts),
    )
    return loss, log_sum


def cross_entropy_gradient_(
    scores: Tensor,
    offset: Tensor | None,
    label: Tensor,
    scale: Tensor,
    log_sum: Tensor,
    grad: Tensor,
) -> None:
    """Replace scores by the gradient of grad · Σ cross_entropy by them.

    Args:
        scores: as for `cross_entropy`, and so are
        offset: what is added to the scores,
        label: the y of each row,
        scale: what its loss is multiplied by.
        log_sum: `[c]` as `cross_entropy` returned it.
        grad: one number on the device.
    """
    rows, columns = scores.shape
    _gradient[(rows, triton.cdiv(columns, BLOCK))](
        scores,
        scores if offset is None else offset,
        label,
        scale,
        log_sum,
        grad,
        columns,
        scores.stride(0),
        unit=LOG2_E,
        has_offset=offset is not None,
        block=BLOCK,
        num_warps=8,
    )


def exponentials_(scores: Tensor, offset: Tensor | None, largest: Tensor) -> None:
    """Replace scores by 2^(score + offset − largest of the row)."""
    rows, columns = scores.shape
    _exponentials[(rows, triton.cdiv(columns, BLOCK))](
        scores,
        scores if offset is None else offset,
        largest,
        columns,
        scores.stride(0),
        has_offset=offset is not None,
        block=BLOCK,
        num_warps=8,
    )


@triton.jit
def _sums(
    scores,
    offset,
    high,
    total,
    columns,
    stride,
    width,
    unit: tl.constexpr,
    has_offset: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    begin = part * width
    end = tl.minimum(begin + width, columns)
    scores += row.to(tl.int64) * stride
    # Finite, so that a row without any label has the sum 0: −inf − −inf would be no number.
    lowest = -3.4028234663852886e38
    largest = tl.full([block], lowest, tl.float32)
    added = tl.zeros([block], tl.float32)
    for start in range(begin, end, block):
        column = start + tl.arange(0, block)
        there = column < end
        g = tl.load(scores + column, mask=there, other=-float("inf")).to(tl.float32)
        if has_offset:
            g += tl.load(offset + column, mask=there, other=0.0)
        g *= unit
        before = largest
        largest = tl.maximum(before, g)
        added = added * tl.exp2(before - largest) + tl.exp2(g - largest)
    top = tl.max(largest)
    place = row * tl.num_programs(1) + part
    tl.store(high + place, top)
    tl.store(total + place, tl.sum(added * tl.exp2(largest - top)))


@triton.jit
def _exponentials(
    scores, offset, largest, columns, stride, has_offset: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < columns
    scores += row.to(tl.int64) * stride
    g = tl.load(scores + column, mask=there, other=0.0).to(tl.float32)
    if has_offset:
        g += tl.load(offset + column, mask=there, other=0.0)
    power = tl.exp2(g - tl.load(largest + row))
    tl.store(scores + column, power.to(scores.dtype.element_ty), mask=there)


@triton.jit
def _cross_entropy(
    scores,
    offset,
    label,
    scale,
    high,
    total,
    loss,
    log_sum,
    rows,
    columns,
    stride,
    parts,
    unit: tl.constexpr,
    has_offset: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
):
    row = tl.program_id(0) * block + tl.arange(0, block)
    there = row < rows
    part = tl.arange(0, width)
    place = row[:, None] * parts + part[None, :]
    counts = there[:, None] & (part < parts)[None, :]
    highs = tl.load(high + place, mask=counts, other=-3.4028234663852886e38)
    totals = tl.load(total + place, mask=counts, other=0.0)
    largest = tl.max(highs, 1)
    sums = tl.sum(totals * tl.exp2(highs - largest[:, None]), 1)
    y = tl.load(label + row, mask=there, other=0)
    exists = in_table(y, columns)
    place_y = row.to(tl.int64) * stride + y
    g = tl.load(scores + place_y, mask=there & exists, other=0.0).to(tl.float32)
    if has_offset:
        g += tl.load(offset + y, mask=there & exists, other=0.0)
    g = tl.where(exists, g, float("nan"))
    log_of_sum = tl.log2(sums)
    tl.store(log_sum + row, largest + log_of_sum, mask=there)
    # The difference to the largest score first: both may be large.
    value = (log_of_sum + (largest - g * unit)) / unit
    weight = tl.load(scale + row, mask=there, other=0.0)
    tl.store(loss + row, tl.where(weight == 0, 0.0, value * weight), mask=there)


@triton.jit
def _gradient(
    scores,
    offset,
    label,
    scale,
    log_sum,
    grad,
    columns,
    stride,
    unit: tl.constexpr,
    has_offset: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < columns
    scores += row.to(tl.int64) * stride
    g = tl.load(scores + column, mask=there, other=0.0).to(tl.float32)
    if has_offset:
        g += tl.load(offset + column, mask=there, other=0.0)
    power = tl.exp2(g * unit - tl.load(log_sum + row))
    is_label = column == tl.load(label + row)
    weight = tl.load(scale + row)
    change = (power - tl.where(is_label, 1.0, 0.0)) * (weight * tl.load(grad).to(tl.float32))
    change = tl.where(weight == 0, 0.0, change)
    tl.store(scores + column, change.to(scores.dtype.element_ty), mask=there)
