"""The weighted bag on CUDA by Triton, read from the data set's CSR arrays: a batch is just point
ids, so its shapes never change.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import RowCounters, RowGradient
from headtail.kernels.triton.groups import grouped
from headtail.kernels.triton.loading import in_table

COLUMNS = 512
"""Columns per program."""
ENTRIES = 128
"""Entries that a program lists at a time."""
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


def weighted_bag(
    offsets: Tensor,
    columns: Tensor,
    values: Tensor,
    ids: Tensor | None,
    weight: Tensor,
    normalise: bool,
    out: Tensor,
) -> None:
    """out[i] = s_i · Σ_j values[j] · weight[columns[j]] over the entries j of point ids[i].

    Args:
        offsets: `[points + 1]` int64, where each point's entries begin.
        columns: `[nnz]` int32 or int64.
        values: `[nnz]` float32.
        ids: `[n]` int64; None for all points in order.
        weight: `[D, d]` float32 or bfloat16.
        normalise: whether s_i is 1 / the length of the point's values (at least float32's smallest
            number), or 1.
        out: `[n, d]` float32, overwritten; NaN for a point that does not exist, and for one with a
            column that the table does not have.
    """
    n, d = out.shape
    width = min(COLUMNS, triton.next_power_of_2(d))
    # Each thread reads 16 bytes of a row and 128 numbers in all: then it sums its own columns, and
    # no thread waits for another.
    size = weight.element_size()
    options = {"width": width, "chunk": 8 * size, "num_warps": max(1, width * size // 512)}
    if not len(weight):  # there is no row to read
        out.zero_()
    elif n and d:
        grid = n, triton.cdiv(d, width)
        sizes = *_sizes(offsets, columns, values), len(weight), d
        tensors = offsets, columns, values, ids, weight, out
        _bag[grid](*tensors, *sizes, normalise=normalise, **options)


def entries(
    offsets: Tensor,
    columns: Tensor,
    values: Tensor,
    ids: Tensor,
    normalise: bool,
    most: int | None,
    num_rows: int,
    counters: RowCounters | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, bool]:
    """(rows, points, coefs, grouped) of a `RowGradient`: what the gradient of each row of the bag
    adds to which row of the table.

    Args:
        offsets: `[points + 1]`,
        columns: `[nnz]`,
        values: `[nnz]`,
        ids: `[n]` and
        normalise: as in `weighted_bag`.
        most: entries that n points can have; None reads their number from the GPU.
        num_rows: D, rows of the table.
        counters: of that table.
    """
    most = int((offsets[ids + 1] - offsets[ids]).sum()) if most is None else most
    rows, points, coefs = list_entries(offsets, columns, values, ids, normalise, most)
    in_order = grouped(RowGradient(rows, coefs, points, coefs), num_rows, counters)
    return in_order.rows, in_order.points, in_order.coefs, True


def list_entries(
    offsets: Tensor,
    columns: Tensor,
    values: Tensor,
    ids: Tensor | None,
    normalise: bool,
    capacity: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The batch as (row, point, coefficient) entries, point after point.

    Args:
        offsets: `[points + 1]`,
        columns: `[nnz]`,
        values: `[nnz]`,
        ids: `[n]` or None, and
        normalise: as in `weighted_bag`.
        capacity: room for so many entries, at least as many as the batch has (the rest is dropped).

    Returns:
        `[capacity]` rows, −1 for padding; `[capacity]` points, indices into the batch; `[capacity]`
        coefficients.
    """
    n = len(offsets) - 1 if ids is None else len(ids)
    device = offsets.device if ids is None else ids.device  # features may be in the host's memory
    starts = torch.empty(n + 1, dtype=torch.int64, device=device)
    rows = torch.empty(capacity, dtype=torch.int64, device=device)
    points = torch.empty_like(rows)
    coefs = torch.empty(capacity, device=device)
    sizes = _sizes(offsets, columns, values)
    _starts[(1,)](offsets, ids, starts, n, *sizes, block=1024)
    grid = (n + triton.cdiv(capacity, ENTRIES),)
    _entries[grid](
        offsets, columns, values, ids, starts, rows, points, coefs, n, capacity, *sizes,
        normalise=normalise, block=ENTRIES,
    )  # fmt: skip
    return rows, points, coefs


def _sizes(offsets: Tensor, columns: Tensor, values: Tensor) -> tuple[int, int]:
    """Points, and the entries that they may have."""
    return len(offsets) - 1, min(len(columns), len(values))


@triton.jit
def _range(offsets, ids, i, mask, num_points, nnz):
    """Where the entries of the batch's i-th point begin and end, and whether it exists: if not, it
    has no entries.
    """
    point = i if ids is None else tl.load(ids + i, mask=mask, other=0)
    exists = mask & in_table(point, num_points)
    start = tl.load(offsets + point, mask=exists, other=0)
    stop = tl.load(offsets + point + 1, mask=exists, other=0)
    exists &= (start >= 0) & (start <= stop) & (stop <= nnz)
    return tl.where(exists, start, 0), tl.where(exists, stop, 0), exists


@triton.jit
def _length(values, start, stop, block: tl.constexpr):
    """‖values[start:stop]‖, but at least float32's smallest."""
    squares = tl.zeros((block,), tl.float32)
    for first in range(start, stop, block):
        j = first + tl.arange(0, block)
        value = tl.load(values + j, mask=j < stop, other=0.0)
        squares += value * value
    return tl.maximum(tl.sqrt_rn(tl.sum(squares)), TINY)


@triton.jit
def _features(columns, values, num_rows, first, start, stop, chunk: tl.constexpr):
    """Rows of the table and factors; places beyond the point's entries get its first row, which is
    cached, times 0. A row that the table does not have becomes the first one, times NaN.
    """
    j = first + tl.arange(0, chunk)
    own = tl.load(columns + start, mask=start < stop, other=0)
    row = tl.load(columns + j, mask=j < stop, other=own)
    value = tl.load(values + j, mask=j < stop, other=0.0)
    exists = in_table(row, num_rows)
    return tl.where(exists, row, 0).to(tl.int64), tl.where(exists, value, float("nan"))


@triton.jit
def _bag(
    offsets, columns, values, ids, weight, out, num_points, nnz, num_rows, d,
    normalise: tl.constexpr, width: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    start, stop, exists = _range(offsets, ids, i, i >= 0, num_points, nnz)
    column = tl.program_id(1) * width + tl.arange(0, width)
    there = column < d
    total = tl.zeros((width,), tl.float32)
    squares = tl.zeros((chunk,), tl.float32)
    row, value = _features(columns, values, num_rows, start, start, stop, chunk)
    for first in range(start, stop, chunk):
        place = row[:, None] * d + column[None, :]
        block = tl.load(weight + place, mask=there[None, :], other=0.0).to(tl.float32)
        # loaded before the block is used
        after = first + chunk
        next_row, next_value = _features(columns, values, num_rows, after, start, stop, chunk)
        total += tl.sum(value[:, None] * block, 0)
        squares += value * value
        row = next_row
        value = next_value
    if normalise:
        length = tl.maximum(tl.sqrt_rn(tl.sum(squares)), TINY)
        total = tl.div_rn(total, tl.zeros_like(total) + length)
    total = tl.where(exists, total, float("nan"))
    tl.store(out + i * d + column, total, mask=there)


@triton.jit
def _starts(offsets, ids, starts, n, num_points, nnz, block: tl.constexpr):
    """starts[i] = the number of entries before the batch's i-th point; starts[n] = all. A batch is
    short, so one program is enough.
    """
    before = tl.load(offsets) * 0  # an int64 zero
    for first in range(0, n, block):
        i = first + tl.arange(0, block)
        start, stop, _ = _range(offsets, ids, i, i < n, num_points, nnz)
        tl.store(starts + i, before + tl.cumsum(stop - start, 0) - (stop - start), mask=i < n)
        before += tl.sum(stop - start)
    tl.store(starts + n, before)


@triton.jit
def _entries(
    offsets, columns, values, ids, starts, rows, points, coefs, n, capacity,
    num_points, nnz, normalise: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A program for each point, and then programs that write the padding."""
    i = tl.program_id(0)
    if i < n:
        start, stop, _ = _range(offsets, ids, i, i < n, num_points, nnz)
        length = _length(values, start, stop, block) if normalise else 1.0
        to = tl.load(starts + i) - start
        for first in range(start, stop, block):
            j = first + tl.arange(0, block)
            mask = (j < stop) & (to + j < capacity)
            tl.store(rows + to + j, tl.load(columns + j, mask=mask).to(tl.int64), mask=mask)
            tl.store(points + to + j, tl.zeros_like(j) + i, mask=mask)
            value = tl.load(values + j, mask=mask, other=0.0)
            tl.store(coefs + to + j, tl.div_rn(value, tl.zeros_like(value) + length), mask=mask)
    else:
        place = (i - n) * block + tl.arange(0, block)
        spare = (place >= tl.load(starts + n)) & (place < capacity)
        tl.store(rows + place, -1, mask=spare)
        tl.store(points + place, 0, mask=spare)
        tl.store(coefs + place, 0.0, mask=spare)
