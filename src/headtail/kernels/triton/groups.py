"""Reordering the entries of a row gradient so that equal rows are neighbours, on CUDA, with fixed
sizes and without reading any number back to the host.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl

from headtail.kernels.gradient import RowCounters, RowGradient
from headtail.kernels.triton.loading import in_table

MOST_RANKED = 4096
"""Entries up to which all pairs are compared."""
MOST_COUNTED = 2**25
"""Table rows up to which each has a counter: 128 MiB of them."""
COUNTED = 256
"""Entries per program that counts."""
MINE = 4
"""Entries per program that ranks,"""
OTHERS = 512
"""and others that it compares them with at a time."""


def grouped(
    gradient: RowGradient, num_rows: int, counters: RowCounters | None = None
) -> RowGradient:
    """The same entries in an order in which equal rows are neighbours; always with points.

    Many entries are ordered by atomic counters: the order within a row, and so the last digit of
    its sum, depends on timing. With `torch.use_deterministic_algorithms(True)` and for very large
    tables they are sorted instead. Only one stream at a time may use a table's counters.

    Args:
        gradient: n entries.
        num_rows: rows of the table they belong to.
        counters: of that table; without them, many entries are sorted.
    """
    if gradient.grouped:
        return gradient
    if len(gradient.rows) <= MOST_RANKED:
        return by_rank(gradient, num_rows)
    deterministic = torch.are_deterministic_algorithms_enabled()
    if counters is None or num_rows > MOST_COUNTED or deterministic:
        return by_sorting(gradient)
    return by_counting(gradient, num_rows, counters)


def by_sorting(gradient: RowGradient) -> RowGradient:
    """A stable sort."""
    rows, order = torch.sort(gradient.rows, stable=True)
    points = order if gradient.points is None else gradient.points[order]
    coefs = None if gradient.coefs is None else gradient.coefs[order]
    return RowGradient(rows, gradient.values, points, coefs, grouped=True)


def by_rank(gradient: RowGradient, num_rows: int) -> RowGradient:
    """An entry's place is the number of entries before it: n² comparisons, in one launch."""
    n = len(gradient.rows)
    out = _like(gradient)
    grid = (triton.cdiv(n, MINE),)
    entries = (gradient.rows, gradient.points, gradient.coefs)
    ordered = (out.rows, out.points, out.coefs)
    _rank[grid](*entries, *ordered, n, num_rows, mine=MINE, block=OTHERS)
    return out


def by_counting(gradient: RowGradient, num_rows: int, counters: RowCounters) -> RowGradient:
    """Atomic counters per row: four launches, each linear in n."""
    n = len(gradient.rows)
    device = gradient.rows.device
    out = _like(gradient)
    counts = counters.zeros(num_rows, device)
    rank = torch.empty(n, dtype=torch.int32, device=device)
    grid = (triton.cdiv(n, COUNTED),)
    entries = gradient.rows, gradient.points, gradient.coefs
    ordered = out.rows, out.points, out.coefs
    _count[grid](gradient.rows, counts, rank, out.rows, n, num_rows, block=COUNTED)
    _start[grid](gradient.rows, counts, rank, n, num_rows, block=COUNTED)
    _scatter[grid](*entries, counts, rank, *ordered, n, num_rows, block=COUNTED)
    _clear[grid](gradient.rows, counts, rank, n, num_rows, block=COUNTED)
    return out


def _like(gradient: RowGradient) -> RowGradient:
    """Room for as many entries of the same values."""
    rows = torch.empty_like(gradient.rows)
    coefs = None if gradient.coefs is None else torch.empty_like(gradient.coefs)
    return RowGradient(rows, gradient.values, torch.empty_like(rows), coefs, grouped=True)


@triton.jit
def _write(to, entry, row, points, coefs, out_rows, out_points, out_coefs, mask):
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
    rows, points, coefs, out_rows, out_points, out_coefs, n, num_rows,
    mine: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * mine + tl.arange(0, mine)
    row = _limited(tl.load(rows + entry, mask=entry < n, other=-1), num_rows)
    key = row * n + entry  # different for all entries, and ordered by row
    smaller = tl.zeros((mine, block), tl.int32)
    for start in range(0, n, block):
        other = start + tl.arange(0, block)
        other_row = _limited(tl.load(rows + other, mask=other < n, other=0), num_rows)
        other_key = other_row * n + other
        smaller += ((other_key[None, :] < key[:, None]) & (other < n)[None, :]).to(tl.int32)
    to = tl.sum(smaller, 1)
    _write(to, entry, row, points, coefs, out_rows, out_points, out_coefs, entry < n)


@triton.jit
def _limited(row, num_rows):
    """Rows that the table does not have become −1 or num_rows: times n, others might overflow, and
    two entries would have one place.
    """
    return tl.minimum(tl.maximum(row, -1), num_rows)


@triton.jit
def _count(rows, counts, rank, out_rows, n, num_rows, block: tl.constexpr):
    """Count the entries of each row, and number each entry within its row. Rows that the table does
    not have are padding.
    """
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    exists = in_table(row, num_rows)
    before = tl.atomic_add(counts + row, 1, mask=exists, sem="relaxed")
    tl.store(rank + entry, before, mask=exists)
    # Places that no entry is written to stay padding.
    tl.store(out_rows + entry, -1, mask=entry < n)


@triton.jit
def _start(rows, counts, rank, n, num_rows, block: tl.constexpr):
    """Each row's first entry reserves places for all of them, and replaces the count by the first
    place.
    """
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    exists = in_table(row, num_rows)
    first = exists & (tl.load(rank + entry, mask=exists, other=1) == 0)
    count = tl.load(counts + row, mask=first, other=0)
    taken = tl.atomic_add(counts + num_rows, tl.sum(count), sem="relaxed")
    tl.store(counts + row, taken + tl.cumsum(count, 0) - count, mask=first)


@triton.jit
def _scatter(
    rows, points, coefs, counts, rank, out_rows, out_points, out_coefs, n, num_rows,
    block: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    exists = in_table(row, num_rows)
    to = tl.load(counts + row, mask=exists, other=0)
    to += tl.load(rank + entry, mask=exists, other=0)
    _write(to, entry, row, points, coefs, out_rows, out_points, out_coefs, exists)


@triton.jit
def _clear(rows, counts, rank, n, num_rows, block: tl.constexpr):
    entry = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.load(rows + entry, mask=entry < n, other=-1)
    exists = in_table(row, num_rows)
    tl.store(counts + row, 0, mask=exists)
    tl.store(counts + num_rows + entry, 0, mask=entry == 0)
