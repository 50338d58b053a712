"""Optimiser updates on CUDA by Triton, in one pass where PyTorch needs several operations.

A row update sums all entries of a row first, and touches no other row. The host never waits, and
all sizes are those of the arguments: a step can be captured in a CUDA graph.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import RowGradient
from headtail.kernels.triton.groups import MOST_RANKED, grouped
from headtail.kernels.triton.loading import in_table

NUMBERS = 1024
"""Numbers per program of the dense update."""
COLUMNS = 512
"""Columns per program of a row update."""
FEW_AT_A_TIME = (8, 4)
"""Entries that a program adds at a time, and its warps, with up to `MOST_RANKED` entries:
each of few programs may hold more registers."""
MANY_AT_A_TIME = (4, 2)
"""The same with more entries."""
TILE = 32
"""Entries per tile. Many entries are summed tile by tile first, so that no program has to add up a
long run.
"""


def adagrad_(p: Tensor, total: Tensor, grad: Tensor, lr: Tensor | float, eps: float) -> None:
    """G ← G + g²; θ ← θ − η·g/(√G + ε), in place, for contiguous float32 tensors of one shape."""
    rate = lr if isinstance(lr, Tensor) else torch.full((), lr, device=p.device)
    grid = (triton.cdiv(p.numel(), NUMBERS),)
    _adagrad[grid](p, total, grad, rate, eps, p.numel(), block=NUMBERS)


def fits(*tensors: Tensor) -> bool:
    """Whether `adagrad_` supports these tensors."""
    return all(
        t.dtype == torch.float32 and t.is_contiguous() and t.shape == tensors[0].shape
        for t in tensors
    )


def sgd_rows(
    p: Tensor, gradient: RowGradient, lr: Tensor | float, seed: Tensor | None = None
) -> None:
    """θ_r ← θ_r − η·g for each row r of the gradient, g the sum of its entries.

    All row updates take p `[T, d]` in float32 or bfloat16, states `[T, d]` in float32, and numbers
    or 0-dim tensors for η. With a seed, a 0-dim int64 tensor, a bfloat16 p is rounded up or down at
    random so that the mean is exact: equal seeds, equal bits.
    """
    _update_rows(_sgd, p, (), gradient, lr, (), seed)


def momentum_rows(
    p: Tensor,
    velocity: Tensor,
    gradient: RowGradient,
    lr: Tensor | float,
    momentum: float,
    seed: Tensor | None = None,
) -> None:
    """v_r ← μ·v_r + g; θ_r ← θ_r − η·v_r."""
    _update_rows(_momentum, p, (velocity,), gradient, lr, (momentum,), seed)


def adagrad_rows(
    p: Tensor,
    total: Tensor,
    gradient: RowGradient,
    lr: Tensor | float,
    eps: float,
    seed: Tensor | None = None,
) -> None:
    """G_r ← G_r + g²; θ_r ← θ_r − η·g/(√G_r + ε). With `[T, 1]` totals, G_r is one number per row,
    and g² its mean over the row.
    """
    if total.shape == p.shape:
        _update_rows(_adagrad_row, p, (total,), gradient, lr, (eps,), seed)
    else:
        numbers = (eps, 1 / p.shape[1])
        rule = _adagrad_per_row
        _update_rows(rule, p, (total,), gradient, lr, numbers, seed, state_per_row=True)


def adam_rows(
    p: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: RowGradient,
    size: Tensor | float,
    beta1: float,
    beta2: float,
    eps: float,
    seed: Tensor | None = None,
) -> None:
    """m_r ← β₁·m_r + (1 − β₁)·g; s_r ← β₂·s_r + (1 − β₂)·g²; θ_r ← θ_r − size·m_r/(√s_r + ε) with
    size = η·√(1 − β₂ᵗ)/(1 − β₁ᵗ).
    """
    _update_rows(_adam, p, (mean, square), gradient, size, (1 - beta1, 1 - beta2, eps), seed)


def squares_of_rows(gradient: RowGradient, num_rows: int) -> Tensor:
    """`[n, c]` squares that add up to the squared norm of a gradient, whose entries of the same row
    are summed first.
    """
    n = len(gradient.rows)
    d = gradient.values.shape[1]
    rows, values, points, coefs, _ = grouped(gradient, num_rows)
    columns = min(COLUMNS, triton.next_power_of_2(d))
    squares = torch.empty(n, triton.cdiv(d, columns), device=values.device)
    chunk, warps = FEW_AT_A_TIME
    _squares[squares.shape](
        rows, points, coefs, values.contiguous(), squares, n, d,
        columns=columns, chunk=chunk, num_warps=warps,
    )  # fmt: skip
    return squares


def _update_rows(
    rule: object,
    p: Tensor,
    states: tuple[Tensor, ...],
    gradient: RowGradient,
    rate: Tensor | float,
    numbers: tuple[float, ...],
    seed: Tensor | None,
    state_per_row: bool = False,
) -> None:
    n = len(gradient.rows)
    d = p.shape[1]
    if n == 0 or d == 0:
        return
    rows, values, points, coefs, _ = grouped(gradient, len(p))
    columns = (
        triton.next_power_of_2(d) if state_per_row else min(COLUMNS, triton.next_power_of_2(d))
    )
    blocks = triton.cdiv(d, columns)
    entries = (rows, points, coefs, values.contiguous())
    tiles = None
    chunk, warps = FEW_AT_A_TIME if n <= MOST_RANKED else MANY_AT_A_TIME
    if n > MOST_RANKED:
        tiles = torch.empty(triton.cdiv(n, TILE), d, device=p.device)
        _sum_tiles[(len(tiles), blocks)](
            *entries, tiles, n, d, tile=TILE, columns=columns, chunk=TILE // 2
        )
    first, second = (*states, None, None)[:2]
    at, rate = (rate, 0.0) if isinstance(rate, Tensor) else (None, float(rate))
    a, b, c = (*map(float, numbers), 0.0, 0.0, 0.0)[:3]
    seed = seed if p.dtype == torch.bfloat16 else None
    # A whole row in one program needs more threads, and fewer entries at a time.
    wide = max(1, columns // COLUMNS)
    options = {"rule": rule, "state_per_row": state_per_row, "tile": TILE, "columns": columns}
    options |= {"chunk": max(1, chunk // wide), "num_warps": min(16, warps * wide)}
    _update[(n, blocks)](
        p, len(p), first, second, *entries, tiles, n, d, seed, at, rate, a, b, c, **options
    )


@triton.jit
def _adagrad(p, total, grad, lr, eps, count, block: tl.constexpr):
    # int64: 100M rows of 512 pass 2^31
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    g = tl.load(grad + place, mask=inside, other=0.0)
    now = tl.load(total + place, mask=inside, other=0.0) + g * g
    tl.store(total + place, now, mask=inside)
    # A number that never had a gradient stays where it is: 0 / (0 + eps) is 0 for any eps above 0.
    step = tl.load(lr) * g / (tl.sqrt(now) + eps)
    tl.store(p + place, tl.load(p + place, mask=inside) - step, mask=inside)


# The rules: old values of a row and up to two states, its gradient, the learning rate and up to
# three numbers give the new ones. Roots and quotients may err in the last digit of a step, not of a
# weight: exact ones take many instructions.


@triton.jit
def _sgd(p, first, second, g, lr, a, b, c):
    return p - lr * g, first, second


@triton.jit
def _momentum(p, velocity, second, g, lr, momentum, b, c):
    velocity = momentum * velocity + g
    return p - lr * velocity, velocity, second


@triton.jit
def _adagrad_row(p, total, second, g, lr, eps, b, c):
    total = total + g * g
    return p - lr * g / (tl.sqrt(total) + eps), total, second


@triton.jit
def _adagrad_per_row(p, total, second, g, lr, eps, share, c):
    total = total + tl.sum(g * g) * share
    return p - tl.div_rn(lr, tl.sqrt_rn(total) + eps) * g, total, second


@triton.jit
def _adam(p, mean, square, g, size, new1, new2, eps):
    mean = mean + (g - mean) * new1
    square = square + (g * g - square) * new2
    return p - size * mean / (tl.sqrt(square) + eps), mean, square


@triton.jit
def _sum(row, start, stop, rows, points, coefs, values, d, column, chunk: tl.constexpr):
    """The sum of the entries of `row`, neighbours from `start` on, up to `stop` at most."""
    g = tl.zeros_like(column).to(tl.float32)
    goes_on = tl.load(rows + start, mask=start < stop, other=-1) == row
    while goes_on:
        entry = start + tl.arange(0, chunk)
        mine = tl.load(rows + entry, mask=entry < stop, other=-1) == row
        # neither load waits for the other
        point = tl.load(points + entry, mask=entry < stop, other=0)
        start += chunk
        goes_on = tl.load(rows + start, mask=start < stop, other=-1) == row
        block = tl.load(
            values + point[:, None] * d + column[None, :],
            mask=mine[:, None] & (column < d)[None, :],
            other=0.0,
        )
        block = block.to(tl.float32)
        if coefs is not None:
            block *= tl.load(coefs + entry, mask=mine, other=0.0)[:, None]
        g += tl.sum(block, 0)
    return g


@triton.jit
def _squares(
    rows, points, coefs, values, squares, n, d, columns: tl.constexpr, chunk: tl.constexpr
):
    """The program of a row's first entry sums all of them; the others have nothing to add."""
    start = tl.program_id(0)
    row = tl.load(rows + start)
    before = tl.load(rows + start - 1, mask=start > 0, other=-1)
    square = 0.0
    if (row >= 0) & (row != before):
        column = tl.program_id(1) * columns + tl.arange(0, columns)
        g = _sum(row, start, n, rows, points, coefs, values, d, column, chunk)
        square = tl.sum(g * g)
    tl.store(squares + start * tl.num_programs(1) + tl.program_id(1), square)


@triton.jit
def _sum_tiles(
    rows, points, coefs, values, tiles, n, d,
    tile: tl.constexpr, columns: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """tiles[t] = the sum of the entries at the beginning of the t-th tile that continue a row of an
    earlier tile, if any.
    """
    start = tl.program_id(0) * tile
    row = tl.load(rows + start)
    before = tl.load(rows + start - 1, mask=start > 0, other=-1)
    if (row >= 0) & (row == before):
        column = tl.program_id(1) * columns + tl.arange(0, columns)
        stop = tl.minimum(n, start + tile)
        g = _sum(row, start, stop, rows, points, coefs, values, d, column, chunk)
        tl.store(tiles + tl.program_id(0).to(tl.int64) * d + column, g, mask=column < d)


@triton.jit
def _sum_of_tiles(row, start, tiles, rows, n, d, column, tile: tl.constexpr, chunk: tl.constexpr):
    """The sum of the results of `_sum_tiles` for `row`, from the tile at `start` on."""
    g = tl.zeros_like(column).to(tl.float32)
    goes_on = tl.load(rows + start, mask=start < n, other=-1) == row
    while goes_on:
        first = start + tl.arange(0, chunk) * tile
        mine = tl.load(rows + first, mask=first < n, other=-1) == row
        start += chunk * tile
        goes_on = tl.load(rows + start, mask=start < n, other=-1) == row
        # Read before the row is known, and selected afterwards: tiles of other rows may hold
        # anything.
        index = (tl.minimum(first, n - 1) // tile).to(tl.int64)
        place = index[:, None] * d + column[None, :]
        block = tl.load(tiles + place, mask=(column < d)[None, :], other=0.0)
        g += tl.sum(tl.where(mine[:, None], block, 0.0), 0)
    return g


@triton.jit
def _update(
    p, num_rows, first, second, rows, points, coefs, values, tiles, n, d,
    seed, rate_at, rate, a, b, c,
    rule: tl.constexpr, state_per_row: tl.constexpr,
    tile: tl.constexpr, columns: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """The program of a row's first entry sums all of them and makes the step; the programs of other
    entries, and of rows that the table does not have, have nothing to do.
    """
    start = tl.program_id(0)
    row = tl.load(rows + start)
    point = tl.load(points + start)
    before = tl.load(rows + start - 1, mask=start > 0, other=-1)
    after = tl.load(rows + start + 1, mask=start + 1 < n, other=-1)
    if in_table(row, num_rows) & (row != before):
        column = tl.program_id(1) * columns + tl.arange(0, columns)
        place = row * d + column
        there = column < d
        # Everything that may be needed is loaded before any of it is used.
        old = tl.load(p + place, mask=there, other=0.0).to(tl.float32)
        if state_per_row:
            state1 = tl.load(first + row)
        elif first is not None:
            state1 = tl.load(first + place, mask=there, other=0.0)
        else:
            state1 = tl.zeros((columns,), tl.float32)
        if second is not None:
            state2 = tl.load(second + place, mask=there, other=0.0)
        else:
            state2 = tl.zeros((columns,), tl.float32)
        g = tl.load(values + point * d + column, mask=there, other=0.0).to(tl.float32)
        lr = rate if rate_at is None else tl.load(rate_at).to(tl.float32)
        if coefs is not None:
            g *= tl.load(coefs + start)
        if after == row:  # seldom, so that a single entry has a path of its own
            stop = n if tiles is None else tl.minimum(n, (start // tile + 1) * tile)
            g += _sum(row, start + 1, stop, rows, points, coefs, values, d, column, chunk)
            if tiles is not None:
                g += _sum_of_tiles(row, stop, tiles, rows, n, d, column, tile, chunk)

        new, state1, state2 = rule(old, state1, state2, g, lr, a, b, c)
        if seed is not None:
            new = _rounded(new, tl.load(seed), row, column)
        tl.store(p + place, new.to(p.dtype.element_ty), mask=there)
        if state_per_row:
            tl.store(first + row, state1)
        elif first is not None:
            tl.store(first + place, state1, mask=there)
        if second is not None:
            tl.store(second + place, state2, mask=there)


@triton.jit
def _rounded(x, seed, row, column):
    """A neighbour of x in bfloat16, still as float32; the upper one with probability (x − lower) /
    (upper − lower).
    """
    h = _mixed(seed.to(tl.uint32)) ^ (seed >> 32).to(tl.uint32) ^ row.to(tl.uint32)
    noise = _mixed(_mixed(h) + column.to(tl.uint32))
    bits = x.to(tl.uint32, bitcast=True) + (noise & 0xFFFF)
    up_or_down = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) <= 3.4e38, up_or_down, x)  # inf and NaN stay as they are


@triton.jit
def _mixed(h):
    """Every bit of h depends on every other: the end of MurmurHash3."""
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)
