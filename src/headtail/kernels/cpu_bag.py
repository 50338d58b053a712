"""The weighted bag on the CPU, by numba: rows are scaled and added in place, and nothing of size [nnz, d] is ever made."""

from __future__ import annotations

from typing import no_type_check  # numba takes bare functions, not those that `pytest --shapes` has wrapped

import numpy as np
from numba import config, njit, prange, set_num_threads

from headtail.kernels.compiled import keep_compiled

keep_compiled()


WORTH_THREADS = 2**22
"""Multiplications from which more than one thread pays."""


def weighted_bag(offsets, columns, values, weight, out, threads):
    """out[i] = Σ_j values[j] · weight[columns[j]] over the entries j of row i, in their order whatever the number of threads."""
    if threads == 1 or len(columns) * weight.shape[1] < WORTH_THREADS:
        # Threads that wait for work take the core from others: where one is enough, none are started.
        _one_thread(offsets, columns, values, weight, out)
    else:
        set_num_threads(min(threads, config.NUMBA_NUM_THREADS))  # pyright: ignore[reportAttributeAccessIssue]
        _many_threads(offsets, columns, values, weight, out)


@njit(cache=True)
@no_type_check
def _row(start, stop, columns, values, weight, row):
    row[:] = 0
    for j in range(start, stop):
        source, value = weight[columns[j]], values[j]
        for k in range(len(row)):
            row[k] += value * source[k]


@njit(cache=True)
@no_type_check
def _one_thread(offsets, columns, values, weight, out):
    for i in range(len(offsets) - 1):
        _row(offsets[i], offsets[i + 1], columns, values, weight, out[i])


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(offsets, columns, values, weight, out):
    for i in prange(len(offsets) - 1):
        _row(offsets[i], offsets[i + 1], columns, values, weight, out[i])


@njit(cache=True)
@no_type_check
def take(offsets, columns, values, ids, new_offsets, new_columns, new_values):
    """Rows `ids` of a bag, one after the other; `new_offsets` tells where each begins."""
    for i in range(len(ids)):
        start, to = offsets[ids[i]], new_offsets[i]
        for j in range(new_offsets[i + 1] - to):
            new_columns[to + j], new_values[to + j] = columns[start + j], values[start + j]


@njit(cache=True)
@no_type_check
def unit_rows(offsets, values, measured, smallest, out):
    """out = values, each row divided by the length of `measured` in it, or by `smallest` if that is more."""
    for i in range(len(offsets) - 1):
        total = values.dtype.type(0)
        for j in range(offsets[i], offsets[i + 1]):
            total += measured[j] * measured[j]
        length = max(np.sqrt(total), smallest)
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = values[j] / length


@njit(cache=True)
@no_type_check
def transpose(offsets, columns, values, place, rows, starts, points, turned):
    """The same entries by column: entry e of column rows[c], starts[c] ≤ e < starts[c+1], is turned[e] at point points[e].

    `place` is a workspace of one number a column, all −1, and is left so: nothing of the table's size is walked. Returns the
    number of different columns, which come out ascending.
    """
    count = 0
    for j in range(len(columns)):
        if place[columns[j]] < 0:
            place[columns[j]] = 0
            rows[count] = columns[j]
            count += 1
    rows[:count].sort()
    for c in range(count):
        place[rows[c]] = c
        starts[c] = 0
    starts[count] = 0
    for j in range(len(columns)):
        starts[place[columns[j]] + 1] += 1
    for c in range(count):
        starts[c + 1] += starts[c]
        place[rows[c]] = starts[c]
    for i in range(len(offsets) - 1):
        for j in range(offsets[i], offsets[i + 1]):
            e = place[columns[j]]
            place[columns[j]] = e + 1
            points[e], turned[e] = i, values[j]
    for c in range(count):
        place[rows[c]] = -1
    return count
