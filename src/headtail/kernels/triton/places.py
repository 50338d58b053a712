"""Which rows of a shared table a step of one rank uses, on CUDA by Triton: a few launches in place
of several dozen.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Ids of one program."""
SEARCHED = 1024
"""Draws that a program looks at at a time, to find one that its rank holds."""


def mapped(ids: Tensor, runs: Tensor, before: int, after: int, limit: int) -> Tensor:
    """The row that a placement gives `ids` + `before`, plus `after`; −1 where the result is outside
    of [0, limit), or the number is in no run.

    Args:
        ids: int64, contiguous.
        runs: `[k, 2]` size and factor of each run of numbers that are mapped among themselves.
        before: added first.
        after: added at the end.
        limit: results are below it.
    """
    out = torch.empty_like(ids)
    if ids.numel():
        grid = (triton.cdiv(ids.numel(), BLOCK),)
        _mapped[grid](ids, runs, len(runs), out, before, after, limit, ids.numel(), block=BLOCK)
    return out


def own_targets(
    label: Tensor, skipped: Tensor | None, scale: Tensor, runs: Tensor, share
) -> tuple[Tensor, Tensor, Tensor]:
    """`headtail.distributed.rows_in_use.own_targets`."""
    positive = torch.empty_like(label)
    known = torch.empty_like(label)
    scaled = torch.empty_like(scale)
    _own_targets[(triton.cdiv(len(label), BLOCK),)](
        label, label if skipped is None else skipped, scale, runs, len(runs),
        positive, known, scaled, share.start, len(share), share.placement.num_labels, len(label),
        all_count=skipped is None, block=BLOCK,
    )  # fmt: skip
    return positive, known, scaled


def rows_in_use(positive: Tensor, drawn: Tensor, out: Tensor) -> Tensor:
    """`headtail.distributed.rows_in_use.rows_in_use`."""
    p = len(positive)
    m = len(drawn)
    _rows_in_use[(triton.cdiv(p + m, BLOCK),)](
        positive, drawn, out, p, m, block=BLOCK, searched=SEARCHED
    )
    return out[p:]


@triton.jit
def _row_of(number, runs, k, there):
    """`Placement`'s bijection; −1 for numbers that are in none of its runs."""
    row = tl.full(number.shape, -1, tl.int64)
    start = tl.zeros((), tl.int64)
    for run in range(k):
        size = tl.load(runs + 2 * run)
        factor = tl.load(runs + 2 * run + 1)
        within = number - start
        inside = there & (within >= 0) & (within < size)
        row = tl.where(inside, start + tl.where(inside, within, 0) * factor % size, row)
        start += size
    return row


@triton.jit
def _mapped(ids, runs, k, out, before, after, limit, n, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    number = tl.load(ids + i, mask=i < n, other=-1) + before
    row = _row_of(number, runs, k, i < n)
    result = row + after
    known = (row >= 0) & (result >= 0) & (result < limit)
    tl.store(out + i, tl.where(known, result, -1), mask=i < n)


@triton.jit
def _own_targets(
    label, skipped, scale, runs, k, positive, known, scaled, first, rows, num_labels, n,
    all_count: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    y = tl.load(label + i, mask=i < n, other=-1)
    exists = (y >= 0) & (y < num_labels)
    counts = i < n
    if not all_count:
        counts = counts & (tl.load(skipped + i, mask=i < n, other=1) == 0)
    place = _row_of(y, runs, k, exists) - first
    own = exists & counts & (place >= 0) & (place < rows)
    s = tl.load(scale + i, mask=i < n, other=0.0)
    tl.store(positive + i, tl.where(own, place, -1), mask=i < n)
    tl.store(known + i, tl.where(exists, y, 0), mask=i < n)
    tl.store(scaled + i, tl.where(exists, s, float("nan")), mask=i < n)


@triton.jit
def _rows_in_use(positive, drawn, out, p, m, block: tl.constexpr, searched: tl.constexpr):
    # The first draw that is here: nearly always among those that are looked at first.
    first = tl.zeros((), tl.int32) + m
    start = tl.zeros((), tl.int32)
    while (start < m) & (first == m):
        place = start + tl.arange(0, searched)
        here = tl.load(drawn + place, mask=place < m, other=-1) >= 0
        first = tl.min(tl.where(here, place, m))
        start += searched
    borrowed = tl.maximum(tl.load(drawn + first, mask=first < m, other=0), 0)
    i = tl.program_id(0) * block + tl.arange(0, block)
    is_draw = i >= p
    j = tl.where(is_draw, i - p, i % m)
    negative = tl.load(drawn + j, mask=i < p + m, other=-1)
    negative = tl.where(negative >= 0, negative, borrowed)
    own = tl.load(positive + i, mask=i < p, other=-1)
    tl.store(out + i, tl.where(is_draw | (own < 0), negative, own), mask=i < p + m)
