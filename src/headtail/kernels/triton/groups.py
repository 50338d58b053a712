"""Entries of a row gradient with equal rows side by side, on CUDA, at fixed sizes and without the
host looking at any number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import RowGradient

FEW = 4096
"""Entries up to which each may be compared with each."""
MOST_COUNTED = 2**25
"""Rows of a table up to which a counter for each is kept: 128 MiB of them."""
BLOCK = 256
# entries that a program compares with so many others at a time
MINE = 4
OTHERS = 512

_COUNTERS: dict[tuple[torch.device, int], Tensor] = {}
"""A workspace for each table size, zero between calls, so that nothing of the table's size is made
or walked in a step.
"""


def grouped(gradient: RowGradient, num_rows: int) -> RowGradient:
    """The same entries in an order in which equal rows are neighbours; always with points.

    Many entries are ordered by atomic counters, so that the order within a row depends on timing,
    and its sum in the last digit. `torch.use_deterministic_algorithms(True)` and very large tables
    sort instead. One stream at a time may do this.

    Args:
        gradient: n entries.
        num_rows: rows of the table they belong to.
    """
    if gradient.grouped:
        return gradient
    if len(gradient.rows) <= FEW:
        return _by_rank(gradient)
    if num_rows > MOST_COUNTED or torch.are_deterministic_algorithms_enabled():
        return _by_sorting(gradient)
    return _by_counting(gradient, num_rows)


def _by_sorting(gradient: RowGradient) -> RowGradient:
    rows, order = torch.sort(gradient.rows, stable=True)
    points = order if gradient.points is None else gradient.points[order]
    return RowGradient(
        rows, gradient.values, points, None if gradient.coefs is None else gradient.coefs[order]
    )


def _by_rank(gradient: RowGradient) -> RowGradient:
    """An entry's place is the number of entries before it: n² comparisons, in one launch."""
    n = len(gradient.rows)
    out = _like(gradient)
    grid = (triton.cdiv(n, MINE),)
    entries = (gradient.rows, gradient.points, gradient.coefs)
    _rank[grid](*entries, out.rows, out.points, out.coefs, n, mine=MINE, block=OTHERS)  # pyright: ignore
    return out


def _by_counting(gradient: RowGradient, num_rows: int) -> RowGradient:
    n = len(gradient.rows)
    device = gradient.rows.device
    out = _like(gradient)
    if (device, num_rows) not in _COUNTERS:
        _COUNTERS[device, num_rows] = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
    counts = _COUNTERS[device, num_rows]
    rank = torch.empty(n, dtype=torch.int32, device=device)
    grid = (triton.cdiv(n, BLOCK),)
    entries = gradient.rows, gradient.points, gradient.coefs
    _count[grid](gradient.rows, counts, rank, out.rows, n, block=BLOCK)  # pyright: ignore
    _start[grid](gradient.rows, counts, rank, n, num_rows, block=BLOCK)  # pyright: ignore
    _scatter[grid](*entries, counts, rank, out.rows, out.points, out.coefs, n, block=BLOCK)  # pyright: ignore
    _clear[grid](gradient.rows, counts, rank, n, num_rows, block=BLOCK)  # pyright: ignore
    return out


def _like(gradient: RowGradient) -> RowGradient:
    rows = torch.empty_like(gradient.rows)
    coefs = gradient.coefs
    return RowGradient(
        rows,
        gradient.values,
        torch.empty_like(rows),
        None if coefs is None else torch.empty_like(coefs),
    )


@triton.jit
def _write(to, entry, row, points, coefs, out_rows, out_points, out_coefs, mask):  # pyright: ignore
    """Entry `entry` becomes entry `to`."""
    tl.store(out_rows + to, row, mask=mask)
    if points is None:
        tl.store(out_points + to, entry.to(tl.int64), mask=mask)
    else:
        tl.store(out_points + to, tl.load(points + entry, mask=mask), mask=mask)
    if coefs is not None:
        tl.store(out_coefs + to, tl.load(coefs + entry, mask=mask), mask=mask)


@triton.jit
def _rank(
    rows, points, coefs, out_rows, out_points, out_coefs, n, mine: tl.constexpr, block: tl.constexpr
):  # pyright: ignore
    entry = tl.program_id(0) * mine + tl.arange(0, mine)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    key = row * n + entry  # different for all entries, and ordered by row
    smaller = tl.zeros((mine, block), tl.int32)
    for start in range(0, n, block):
        other = start + tl.arange(0, block)
        other_key = tl.load(rows + other, mask=other < n, other=0) * n + other
        smaller += ((other_key[None, :] < key[:, None]) & (other < n)[None, :]).to(tl.int32)
    _write(
        tl.sum(smaller, 1), entry, row, points, coefs, out_rows, out_points, out_coefs, entry < n
    )


@triton.jit
def _count(rows, counts, rank, out_rows, n, block: tl.constexpr):  # pyright: ignore
    """How many entries each row has, and which of them each entry is."""
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    tl.store(
        rank + entry, tl.atomic_add(counts + row, 1, mask=row >= 0, sem="relaxed"), mask=row >= 0
    )
    # as many places as there is padding will stay so
    tl.store(out_rows + entry, -1, mask=entry < n)


@triton.jit
def _start(rows, counts, rank, n, num_rows, block: tl.constexpr):  # pyright: ignore
    """Each row's first entry takes places for all of them, and leaves the first place where the
    count was.
    """
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    first = (row >= 0) & (tl.load(rank + entry, mask=row >= 0, other=1) == 0)
    count = tl.load(counts + row, mask=first, other=0)
    taken = tl.atomic_add(counts + num_rows, tl.sum(count), sem="relaxed")
    tl.store(counts + row, taken + tl.cumsum(count, 0) - count, mask=first)


@triton.jit
def _scatter(
    rows, points, coefs, counts, rank, out_rows, out_points, out_coefs, n, block: tl.constexpr
):  # pyright: ignore
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    to = tl.load(counts + row, mask=row >= 0, other=0) + tl.load(
        rank + entry, mask=row >= 0, other=0
    )
    _write(to, entry, row, points, coefs, out_rows, out_points, out_coefs, row >= 0)


@triton.jit
def _clear(rows, counts, rank, n, num_rows, block: tl.constexpr):  # pyright: ignore
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    tl.store(counts + row, 0, mask=row >= 0)
    tl.store(counts + num_rows + entry, 0, mask=entry == 0)
