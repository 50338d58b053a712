"""The weighted bag on a CPU, by numba: rows are scaled and added in place, so that no tensor of
size [nnz, d] is needed.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from headtail.errors import check_inside
from headtail.kernels.compiled import keep_compiled, uses_threads
from headtail.kernels.cpu.inside import refuse_outside
from headtail.kernels.cpu.rows import add_up
from headtail.kernels.gradient import RowCounters

keep_compiled()

WORTH_THREADS = 2**22
"""Multiplications from which more than one thread pays."""
SMALLEST = np.finfo(np.float32).tiny
"""The least length of a point, so that one without features stays 0."""


def weighted_bag(
    offsets: Tensor,
    columns: Tensor,
    values: Tensor,
    ids: Tensor,
    weight: Tensor,
    normalise: bool,
    out: Tensor,
) -> None:
    """out[i] = s_i · Σ_j values[j] · weight[columns[j]] over the entries j of row ids[i]; s_i is 1,
    or 1/length to normalise.
    """
    tensors = offsets, columns, values, ids, weight, out
    arrays = [tensor.detach().numpy() for tensor in tensors]
    multiplications = len(columns) * out.shape[1]
    bag = _many_threads if uses_threads(multiplications, WORTH_THREADS) else _one_thread
    try:
        bag(normalise, *arrays)
    except IndexError:
        check_inside("ids", ids, len(offsets) - 1, "rows of the bag")
        raise


def entries(
    offsets: Tensor,
    columns: Tensor,
    values: Tensor,
    ids: Tensor,
    normalise: bool,
    most: int | None,
    num_rows: int,
    counters: RowCounters | None = None,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """(rows, points, coefs, grouped) of a `RowGradient`: what the gradient of each row of the bag
    adds to which row of the table. `most`, `num_rows` and `counters` are for kernels that need
    room in advance.
    """
    bag = offsets.numpy(), columns.numpy(), values.detach().numpy(), ids.numpy()
    try:
        n = int(count(bag[0], bag[3]))
    except IndexError:
        check_inside("ids", ids, len(offsets) - 1, "rows of the bag")
        raise
    rows = np.empty(n, np.int64)
    points = np.empty(n, np.int64)
    coefs = np.empty(n, np.float32)
    _entries(*bag, normalise, rows, points, coefs)
    return torch.from_numpy(rows), torch.from_numpy(points), torch.from_numpy(coefs), False


@njit(cache=True)
@no_type_check
def _scale(start, stop, values):
    total = values.dtype.type(0)
    for j in range(start, stop):
        total += values[j] * values[j]
    return values.dtype.type(1) / max(np.sqrt(total), SMALLEST)


@njit(cache=True)
@no_type_check
def _row(start, stop, columns, values, weight, normalise, row):
    add_up(row, columns[start:stop], values[start:stop], weight)
    if normalise:
        scale = _scale(start, stop, values)
        for k in range(len(row)):
            row[k] *= scale


@njit(cache=True)
@no_type_check
def _one_thread(normalise, offsets, columns, values, ids, weight, out):
    refuse_outside(ids, len(offsets) - 1)
    for i in range(len(ids)):
        _row(offsets[ids[i]], offsets[ids[i] + 1], columns, values, weight, normalise, out[i])


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(normalise, offsets, columns, values, ids, weight, out):
    refuse_outside(ids, len(offsets) - 1)
    for i in prange(len(ids)):
        _row(offsets[ids[i]], offsets[ids[i] + 1], columns, values, weight, normalise, out[i])


@njit(cache=True)
@no_type_check
def count(offsets, ids):
    """The number of entries in these rows."""
    refuse_outside(ids, len(offsets) - 1)
    total = 0
    for i in range(len(ids)):
        total += offsets[ids[i] + 1] - offsets[ids[i]]
    return total


@njit(cache=True)
@no_type_check
def _entries(offsets, columns, values, ids, normalise, rows, points, coefs):
    e = 0
    for i in range(len(ids)):
        start = offsets[ids[i]]
        stop = offsets[ids[i] + 1]
        scale = _scale(start, stop, values) if normalise else values.dtype.type(1)
        for j in range(start, stop):
            rows[e] = columns[j]
            points[e] = i
            coefs[e] = scale * values[j]
            e += 1


@njit(cache=True)
@no_type_check
def take(offsets, columns, values, ids, new_offsets, new_columns, new_values):
    """Copy rows `ids` of a bag, one after the other, each to where `new_offsets` begins it."""
    for i in range(len(ids)):
        start = offsets[ids[i]]
        to = new_offsets[i]
        for j in range(new_offsets[i + 1] - to):
            new_columns[to + j] = columns[start + j]
            new_values[to + j] = values[start + j]
