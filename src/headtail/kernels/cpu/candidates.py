"""Labels that may be among the best k, by bfloat16 products and the largest error they can have."""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from headtail.kernels.compiled import keep_compiled, uses_threads
from headtail.kernels.cpu.prefetch import AHEAD, prefetch
from headtail.kernels.cpu.products import product

keep_compiled()

WORTH_SCREENING = 128
"""Points from which a second, smaller copy of each block of the table pays."""
NARROWEST = 32
"""Hidden size from which products take longer than their comparison."""
ROUNDED = np.float32(2**-8)
"""The largest relative error of a bfloat16 number is half of this."""
TOGETHER = 64
"""Scores that are compared together; few groups hold one that counts."""
WORTH_THREADS = 2**18
"""Scores from which more than one thread pays."""


Pairs = tuple[Tensor, Tensor]
"""`[p]` rows of the hidden states, and `[p]` labels that must not be answered there."""


class Candidates(NamedTuple):
    """What is kept of each point.

    Attributes:
        low: `[n, k]` a heap of the best lower bounds, the least first: k labels reach it.
        owner: `[n, k]` their labels.
        label: `[n, c]` candidates.
        high: `[n, c]` their upper bounds.
        number: `[n]` how many there are; more than c where some were lost.
    """

    low: np.ndarray
    owner: np.ndarray
    label: np.ndarray
    high: np.ndarray
    number: np.ndarray


def rule_out(scores: Tensor, excluded: Pairs | None, start: int) -> None:
    """Set the scores of pairs to −∞; column 0 is label `start`."""
    if excluded is not None:
        row, label = excluded
        column = label - start
        here = (column >= 0) & (column < scores.shape[1])
        scores[row[here], column[here]] = -torch.inf


def screens(hidden: Tensor) -> bool:
    """Whether candidates are faster than float32 scores of all labels."""
    fast = torch.cpu._is_avx512_bf16_supported()
    return fast and len(hidden) >= WORTH_SCREENING and hidden.shape[1] >= NARROWEST


def candidates(
    hidden: Tensor,
    table: Tensor,
    base: Tensor | None,
    k: int,
    excluded: Pairs | None,
    width: int,
) -> Candidates:
    """All labels that may be among the best k of `hidden @ table.T + base`, block by block.

    |h·w − ĥ·ŵ| ≤ 2⁻⁸·|h|·|w| for the rounded ĥ and ŵ, to which their sum in float32 adds d·2⁻²³.
    """
    n, d = hidden.shape
    room = max(512, 8 * k)
    found = Candidates(
        np.full((n, k), -np.inf, np.float32),
        np.empty((n, k), np.int64),
        np.empty((n, room), np.int64),
        np.empty((n, room), np.float32),
        np.zeros(n, np.int64),
    )
    error = 1.02 * 2**-8 + d * 2**-23
    reach = (torch.linalg.vector_norm(hidden, dim=1) * error).numpy()
    rounded = hidden.bfloat16()
    for start in range(0, len(table), width):
        rows = table[start : start + width]
        scores = torch.mm(rounded, rows.bfloat16().T)
        rule_out(scores, excluded, start)
        bits = scores.view(torch.int16).numpy()
        norms = torch.linalg.vector_norm(rows, dim=1).numpy()
        shift = torch.zeros(len(rows)) if base is None else base[start : start + width]
        screen = _many_threads if uses_threads(scores.numel(), WORTH_THREADS) else _one_thread
        screen(bits, norms, shift.contiguous().numpy(), reach, start, *found)
    return found


def take_exact(
    hidden: Tensor, table: Tensor, base: Tensor | None, k: int, found: Candidates
) -> tuple[Tensor, Tensor, Tensor]:
    """The best k candidates by their float32 scores, in any order, and `[n]` whether all that
    could be among them were kept.
    """
    values = torch.empty(len(hidden), k)
    indices = torch.empty(len(hidden), k, dtype=torch.int64)
    certain = torch.empty(len(hidden), dtype=torch.bool)
    shift = np.zeros(0, np.float32) if base is None else base.contiguous().numpy()
    arrays = hidden.numpy(), table.numpy(), shift
    _take_exact(*arrays, *found, values.numpy(), indices.numpy(), certain.numpy())
    return values, indices, certain


@njit(cache=True)
@no_type_check
def _one_thread(bits, norms, shift, reach, start, low, owner, label, high, count):
    for i in range(len(bits)):
        count[i] = _screen(
            bits[i], norms, shift, reach[i], start, low[i], owner[i], label[i], high[i], count[i]
        )


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(bits, norms, shift, reach, start, low, owner, label, high, count):
    for i in prange(len(bits)):
        count[i] = _screen(
            bits[i], norms, shift, reach[i], start, low[i], owner[i], label[i], high[i], count[i]
        )


@njit(inline="always")
@no_type_check
def _bounds(bits, norm, shift, reach):
    """The least and the largest value that a score can have, given as bfloat16."""
    score = np.int32(np.int32(bits) << np.int32(16)).view(np.float32)
    off = reach * norm
    # By choice, not by |score|, so that a score of −∞ keeps its value.
    less = min(score * (1 - ROUNDED), score * (1 + ROUNDED)) + shift
    more = max(score * (1 - ROUNDED), score * (1 + ROUNDED)) + shift
    slack = (off + abs(shift) * np.float32(2**-20)) * np.float32(1.0001)
    return less - slack, more + slack


@njit(cache=True)
@no_type_check
def _any_reaches(bits, norms, shift, reach, least):
    """Whether an upper bound is above `least`, or NaN."""
    number = np.int32(0)
    for j in range(len(bits)):
        _, more = _bounds(bits[j], norms[j], shift[j], reach)
        number += np.int32(not more <= least)
    return number > 0


@njit(cache=True)
@no_type_check
def _screen(bits, norms, shift, reach, start, low, owner, label, high, count):
    """Add the candidates of one block; returns their number, more than there is room for where
    some were lost.
    """
    if count > len(label):
        return count
    for first in range(0, len(bits), TOGETHER):
        last = min(first + TOGETHER, len(bits))
        own = slice(first, last)
        if not _any_reaches(bits[own], norms[own], shift[own], reach, low[0]):
            continue
        for j in range(first, last):
            less, more = _bounds(bits[j], norms[j], shift[j], reach)
            if more <= low[0]:
                continue
            if count == len(label):
                count = _compacted(low[0], label, high)
            if count == len(label):
                return count + 1
            label[count] = start + j
            high[count] = more
            count += 1
            if less > low[0]:
                low[0] = less
                owner[0] = start + j
                settle(0, low, owner)
    return count


@njit(cache=True)
@no_type_check
def _compacted(least, label, high):
    """Drop candidates that no longer reach the k-th best; returns how many are left."""
    kept = 0
    for c in range(len(label)):
        if not high[c] <= least:
            label[kept] = label[c]
            high[kept] = high[c]
            kept += 1
    return kept


@njit(cache=True)
@no_type_check
def _take_exact(hidden, table, shift, low, owner, label, high, count, values, ids, certain):
    k = values.shape[1]
    for i in range(len(hidden)):
        taken = 0
        for c in range(min(count[i], label.shape[1])):
            prefetch(table, label[i, min(c + AHEAD, count[i] - 1, label.shape[1] - 1)])
            if high[i, c] <= low[i, 0]:
                continue
            y = label[i, c]
            score = product(hidden[i], table[y])
            if len(shift):
                score += shift[y]
            if taken < k:
                values[i, taken] = score
                ids[i, taken] = y
                taken += 1
                if taken == k:
                    for at in range(k // 2 - 1, -1, -1):
                        settle(at, values[i], ids[i])
            elif below(values[i, 0], score):
                values[i, 0] = score
                ids[i, 0] = y
                settle(0, values[i], ids[i])
        certain[i] = taken == k and count[i] <= label.shape[1]


@njit(cache=True)
@no_type_check
def below(x, y):
    """x < y; NaN is above all numbers, as in torch."""
    return x < y or (np.isnan(y) and not np.isnan(x))


@njit(cache=True)
@no_type_check
def settle(at, values, ids):
    """Move one entry of the heap down until both below it are larger."""
    value = values[at]
    label = ids[at]
    while 2 * at + 1 < len(values):
        child = 2 * at + 1
        if child + 1 < len(values) and below(values[child + 1], values[child]):
            child += 1
        if not below(values[child], value):
            break
        values[at] = values[child]
        ids[at] = ids[child]
        at = child
    values[at] = value
    ids[at] = label
