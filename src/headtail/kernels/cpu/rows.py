"""Optimiser updates of table rows on a CPU, by numba: entries are summed by row and applied in one
pass, in place.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
from numba import njit, prange
from torch import Tensor

from headtail.errors import HeadtailError, check_inside
from headtail.kernels.compiled import keep_compiled, uses_threads
from headtail.kernels.cpu.prefetch import AHEAD, prefetch
from headtail.kernels.gradient import RowGradient

keep_compiled()

SGD, MOMENTUM, ADAGRAD, ADAGRAD_PER_ROW, ADAM = range(5)
WORTH_THREADS = 2**20
"""Numbers to add up from which more than one thread pays."""
EACH_ITS_OWN = np.zeros(0, np.int64)
"""For entries that take the values in their order."""
ALL_ONE = np.zeros(0, np.float32)
"""For entries without a factor."""


def sgd_rows(p: Tensor, gradient: RowGradient, lr: float) -> None:
    """θ_r ← θ_r − η·g."""
    _update(SGD, p, p, p, gradient, lr)


def momentum_rows(
    p: Tensor, velocity: Tensor, gradient: RowGradient, lr: float, momentum: float
) -> None:
    """v_r ← μ·v_r + g; θ_r ← θ_r − η·v_r."""
    _update(MOMENTUM, p, velocity, p, gradient, lr, momentum)


def adagrad_rows(p: Tensor, total: Tensor, gradient: RowGradient, lr: float, eps: float) -> None:
    """G_r ← G_r + g²; θ_r ← θ_r − η·g/(√G_r + ε). With `[T, 1]` totals, G_r is one number per row,
    and g² its mean over the row.
    """
    rule = ADAGRAD if total.shape == p.shape else ADAGRAD_PER_ROW
    _update(rule, p, total, p, gradient, lr, eps=eps)


def adam_rows(
    p: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: RowGradient,
    size: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Update the moments of touched rows; θ_r ← θ_r − size·mean/(√square + ε)."""
    _update(ADAM, p, mean, square, gradient, size, 1 - beta1, 1 - beta2, eps)


def _update(
    rule: int,
    p: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: RowGradient,
    lr: float,
    x: float = 0.0,
    y: float = 0.0,
    eps: float = 0.0,
) -> None:
    """Sum the entries of each row and take its step; x and y are the numbers of the rule."""
    rows = gradient.rows.numpy()
    values = gradient.values.detach().contiguous().numpy()
    points = EACH_ITS_OWN if gradient.points is None else gradient.points.numpy()
    coefs = ALL_ONE if gradient.coefs is None else gradient.coefs.numpy()
    table = p.detach().numpy()
    tables = (
        table,
        table if first is p else first.detach().numpy(),
        table if second is p else second.detach().numpy(),
    )
    _check_shapes(table, rows, values, points, coefs)
    # Only entries that share values are padded.
    least = 0 if gradient.points is None else -1
    update = _many_threads if uses_threads(len(rows) * p.shape[1], WORTH_THREADS) else _one_thread
    try:
        update(rule, *tables, rows, least, values, points, coefs, lr, x, y, eps)
    except IndexError:
        check_inside("grad", gradient.rows, len(table), "rows of its table", low=least)
        raise


def _check_shapes(
    table: np.ndarray, rows: np.ndarray, values: np.ndarray, points: np.ndarray, coefs: np.ndarray
) -> None:
    """Refuse entries that do not fit the table, or each other."""
    n = len(rows)
    as_many = len(points) == n or (not len(points) and len(values) >= n)
    as_wide = values.ndim == 2 and values.shape[1] == table.shape[1]
    if not (as_many and as_wide and len(coefs) in (0, n)):
        raise HeadtailError(
            f"A gradient has {n:,} rows and values of the shape {list(values.shape)}, but its "
            f"table has the shape {list(table.shape)}. Give one value of that width for each row."
        )


@njit(cache=True)
@no_type_check
def by_row(rows, least, num_rows):
    """(distinct rows in the order they come, starts, order): entries order[starts[c]:starts[c+1]]
    belong to the c-th of them. A row below `least` or not in the table is an IndexError.

    A hash table with room for the entries, not for the table, so that nothing of size L is
    allocated or read.
    """
    n = len(rows)
    bits = 1
    while (1 << bits) < 2 * n:
        bits += 1
    slots = np.full(1 << bits, -1, np.int64)
    distinct = np.empty(n, np.int64)
    starts = np.zeros(n + 1, np.int64)
    owner = np.empty(n, np.int64)
    count = 0
    for e in range(n):
        owner[e] = -1
        if rows[e] < least or rows[e] >= num_rows:
            raise IndexError
        if rows[e] < 0:
            continue
        hashed = np.uint64(rows[e]) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(hashed >> np.uint64(64 - bits))
        while slots[slot] >= 0 and distinct[slots[slot]] != rows[e]:
            slot = (slot + 1) & ((1 << bits) - 1)
        if slots[slot] < 0:
            slots[slot] = count
            distinct[count] = rows[e]
            count += 1
        owner[e] = slots[slot]
        starts[owner[e] + 1] += 1
    for c in range(count):
        starts[c + 1] += starts[c]
    order = np.empty(starts[count], np.int64)
    filled = starts[:count].copy()
    for e in range(n):
        if owner[e] >= 0:
            order[filled[owner[e]]] = e
            filled[owner[e]] += 1
    return distinct[:count], starts[: count + 1], order


@njit(cache=True, fastmath={"contract"})  # a product and its sum in one operation with one rounding
@no_type_check
def add_up(out, rows, coefs, values):
    """out = Σ_e coefs[e] · values[rows[e]], in their order; four at a time, so that `out` is
    read and written once for four.
    """
    n = len(rows)
    if n == 1:  # the usual case of a large table
        a = values[rows[0]]
        x = coefs[0]
        for k in range(len(out)):
            out[k] = x * a[k]
        return
    out[:] = 0
    for e in range(0, n - 3, 4):
        a = values[rows[e]]
        b = values[rows[e + 1]]
        c = values[rows[e + 2]]
        d = values[rows[e + 3]]
        x = coefs[e]
        y = coefs[e + 1]
        z = coefs[e + 2]
        u = coefs[e + 3]
        for k in range(len(out)):
            out[k] = out[k] + x * a[k] + y * b[k] + z * c[k] + u * d[k]
    for e in range(n - n % 4, n):
        a = values[rows[e]]
        x = coefs[e]
        for k in range(len(out)):
            out[k] += x * a[k]


@njit(cache=True, fastmath={"reassoc", "contract"})  # eight partial sums at a time
@no_type_check
def _mean_square(g):
    total = np.float32(0)
    for k in range(len(g)):
        total += g[k] * g[k]
    return total / np.float32(len(g))


# numpy's error model has no branch for division by zero, so that the loops are vectorised. Rows are
# indexed, not sliced: a slice counts references, which takes as long as the row itself.
@njit(cache=True, error_model="numpy")
@no_type_check
def _step(rule, p, first, second, r, g, s, lr, x, y, eps):
    """Change row r, given its gradient g[s]."""
    d = p.shape[1]
    lr = np.float32(lr)
    x = np.float32(x)
    y = np.float32(y)
    eps = np.float32(eps)
    if rule == SGD:
        for k in range(d):
            p[r, k] -= lr * g[s, k]
    elif rule == MOMENTUM:
        for k in range(d):
            now = x * first[r, k] + g[s, k]
            first[r, k] = now
            p[r, k] -= lr * now
    elif rule == ADAGRAD:
        for k in range(d):
            now = first[r, k] + g[s, k] * g[s, k]
            first[r, k] = now
            p[r, k] -= lr * g[s, k] / (np.sqrt(now) + eps)
    elif rule == ADAGRAD_PER_ROW:
        first[r, 0] += _mean_square(g[s])
        size = lr / (np.sqrt(first[r, 0]) + eps)
        for k in range(d):
            p[r, k] -= size * g[s, k]
    else:
        for k in range(d):
            mean = first[r, k] + (g[s, k] - first[r, k]) * x
            square = second[r, k] + (g[s, k] * g[s, k] - second[r, k]) * y
            first[r, k] = mean
            second[r, k] = square
            p[r, k] -= lr * mean / (np.sqrt(square) + eps)


@njit(cache=True)
@no_type_check
def _grouped(rows, least, points, coefs, num_rows):
    """(distinct rows, starts, points, coefs): the entries of a row are neighbours."""
    distinct, starts, order = by_row(rows, least, num_rows)
    own = points[order] if len(points) else order
    factors = coefs[order] if len(coefs) else np.ones(len(order), np.float32)
    return distinct, starts, own, factors


@njit(cache=True)
@no_type_check
def _fetch(rule, p, first, second, row):
    """Begin to load a row and its state."""
    prefetch(p, row)
    if rule != SGD:
        prefetch(first, row)
    if rule == ADAM:
        prefetch(second, row)


@njit(cache=True)
@no_type_check
def _one_thread(rule, p, first, second, rows, least, values, points, coefs, lr, x, y, eps):
    distinct, starts, points, coefs = _grouped(rows, least, points, coefs, len(p))
    last = len(distinct) - 1
    # Rows with one entry are most rows of a label table: nothing is added up. A loop of their own,
    # because with both kinds in one loop the compiler makes each twice as slow.
    for c in range(len(distinct)):
        start = starts[c]
        if starts[c + 1] - start == 1 and coefs[start] == 1:
            _fetch(rule, p, first, second, distinct[min(c + AHEAD, last)])
            _step(rule, p, first, second, distinct[c], values, points[start], lr, x, y, eps)
    g = np.empty((1, p.shape[1]), np.float32)
    for c in range(len(distinct)):
        start = starts[c]
        stop = starts[c + 1]
        if stop - start > 1 or coefs[start] != 1:
            _fetch(rule, p, first, second, distinct[min(c + AHEAD, last)])
            add_up(g[0], points[start:stop], coefs[start:stop], values)
            _step(rule, p, first, second, distinct[c], g, 0, lr, x, y, eps)


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(rule, p, first, second, rows, least, values, points, coefs, lr, x, y, eps):
    distinct, starts, points, coefs = _grouped(rows, least, points, coefs, len(p))
    last = len(distinct) - 1
    for c in prange(len(distinct)):
        _fetch(rule, p, first, second, distinct[min(c + AHEAD, last)])
        g = np.empty((1, p.shape[1]), np.float32)
        own = slice(starts[c], starts[c + 1])
        add_up(g[0], points[own], coefs[own], values)
        _step(rule, p, first, second, distinct[c], g, 0, lr, x, y, eps)
