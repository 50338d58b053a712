"""The best k labels on a CPU: products block by block, and of each block only the scores that may
be among the best are looked at again.

Where the processor multiplies bfloat16 at twice the speed, candidates come from such products:
every label whose score, with the largest error it can have, reaches the k-th best. Their float32
scores decide.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from headtail.errors import HeadtailError
from headtail.kernels.compiled import keep_compiled, uses_threads
from headtail.kernels.cpu.candidates import (
    Pairs,
    below,
    candidates,
    rule_out,
    screens,
    settle,
    take_exact,
)

keep_compiled()

SCORES_AT_ONCE = 2**23
"""Scores that are held at a time: most stay in the last cache until they are compared."""
NARROWEST = 256
"""Labels per block, at least: narrower products are slow."""
WORTH_THREADS = 2**18
"""Scores from which more than one thread pays."""
TOGETHER = 64
"""Scores that are compared together; few groups hold one that counts."""


def topk(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    k: int,
    excluded: Pairs | None = None,
) -> tuple[Tensor, Tensor]:
    """The k largest of `hidden @ table.T + bias + shift` per row; of equal scores the first.

    Args:
        hidden: `[n, d]` float32.
        table: `[L, d]` float32.
        bias: `[L]`, and
        shift: `[L]`, for instance of a post-hoc correction; None for 0.
        k: at most L.
        excluded: pairs that must not be answered, or None.

    Returns:
        `[n, k]` scores, descending, and `[n, k]` int64 labels; where none remain, the score is −∞
        and the label any.
    """
    base = bias if shift is None else shift if bias is None else bias + shift
    if base is not None and len(base) != len(table):
        raise HeadtailError(
            f"There are {len(base):,} biases for {len(table):,} labels. Give one for each label."
        )
    hidden = hidden.detach().contiguous()
    table = table.detach()
    if not screens(hidden):
        return _sorted(*_by_scores(hidden, table, base, k, excluded))
    found = candidates(hidden, table, base, k, excluded, _width(hidden, table, k))
    values, indices, certain = take_exact(hidden, table, base, k, found)
    left = (~certain).nonzero()[:, 0]
    if len(left):  # so many labels come close that they were not all kept
        rest = None if excluded is None else _within(excluded, left, len(hidden))
        values[left], indices[left] = _by_scores(hidden[left], table, base, k, rest)
    return _sorted(values, indices)


def _width(hidden: Tensor, table: Tensor, k: int) -> int:
    """Labels per block."""
    return min(len(table), max(k, NARROWEST, SCORES_AT_ONCE // max(1, len(hidden))))


def _by_scores(
    hidden: Tensor, table: Tensor, base: Tensor | None, k: int, excluded: Pairs | None
) -> tuple[Tensor, Tensor]:
    """Values and labels in any order, by float32 scores of all labels."""
    n = len(hidden)
    width = _width(hidden, table, k)
    values = torch.empty(n, k)
    indices = torch.empty(n, k, dtype=torch.int64)
    room = torch.empty(n * width)
    for start in range(0, len(table), width):
        rows = table[start : start + width]
        scores = room[: n * len(rows)].view(n, len(rows))
        if base is None:
            torch.mm(hidden, rows.T, out=scores)
        else:
            torch.addmm(base[start : start + width], hidden, rows.T, out=scores)
        rule_out(scores, excluded, start)
        select = _many_threads if uses_threads(scores.numel(), WORTH_THREADS) else _one_thread
        select(scores.numpy(), start, values.numpy(), indices.numpy())
    return values, indices


def _sorted(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The best first."""
    order = values.argsort(dim=1, descending=True, stable=True)
    return values.gather(1, order), indices.gather(1, order)


def _within(excluded: Pairs, rows: Tensor, n: int) -> Pairs:
    """The pairs of some rows, which are counted from 0."""
    place = torch.full((n,), -1)
    place[rows] = torch.arange(len(rows))
    row = place[excluded[0]]
    return row[row >= 0], excluded[1][row >= 0]


@njit(cache=True)
@no_type_check
def _one_thread(scores, start, values, ids):
    for i in range(scores.shape[0]):
        _take(scores[i], start, values[i], ids[i])


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(scores, start, values, ids):
    for i in prange(scores.shape[0]):
        _take(scores[i], start, values[i], ids[i])


@njit(cache=True)
@no_type_check
def _take(scores, start, values, ids):
    """Put the scores that belong there into a heap of k values, the least first."""
    k = len(values)
    begin = 0
    if start == 0:
        begin = k
        for j in range(k):
            values[j] = scores[j]
            ids[j] = j
        for at in range(k // 2 - 1, -1, -1):
            settle(at, values, ids)
    for first in range(begin, len(scores), TOGETHER):
        last = min(first + TOGETHER, len(scores))
        if not _any_above(scores[first:last], values[0]):
            continue
        for j in range(first, last):
            if below(values[0], scores[j]):
                values[0] = scores[j]
                ids[0] = start + j
                settle(0, values, ids)


@njit(cache=True)
@no_type_check
def _any_above(scores, least):
    """Whether one is larger than `least`, or NaN."""
    count = np.int32(0)
    for j in range(len(scores)):
        count += np.int32(not scores[j] <= least)
    return count > 0
