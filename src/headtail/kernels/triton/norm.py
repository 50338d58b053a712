"""Batch normalisation with shortcut and rectifier on CUDA: two kernels forward, two backward, no
atomics, one order of summation.

Images are channels last, so they are a matrix `[R, C]`, R = n · h · w. A first kernel reduces parts
of its rows; in a second one each program combines the parts of its own channels and writes its
share of the result, which saves a third kernel.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportReturnType=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192
"""Numbers that a program holds at a time."""
WARPS = 8
"""Warps per program."""
UNROLLED = 2
"""Tiles that a program loads at a time: enough to hide the latency of memory."""
MOST_CHANNELS = 64
"""The most channels per program."""
PARTS = 128
"""The most programs that share the rows of the same channels: about one per multiprocessor."""


def norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    relu: bool,
    running: tuple[Tensor, Tensor],
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Normalise by the batch, add, rectify, and update the running mean and variance.

    Args:
        x: `[n, C, h, w]`, channels last, C a power of two.
        weight: `[C]` γ, float32.
        bias: `[C]` β.
        shortcut: like x, or None.
        relu: whether to rectify.
        running: `[C]` mean and `[C]` unbiased variance, changed in place.
        momentum: weight of the batch in them.
        eps: ε.

    Returns:
        y like x, and `[2, C]` the batch's mean and 1 / sqrt(variance + ε).
    """
    grid, rows, sizes = _shape(x)
    y = torch.empty_like(x)
    moments = x.new_empty(2, x.shape[1], dtype=torch.float32)
    parts = x.new_empty(2, grid[0], x.shape[1], dtype=torch.float32)
    _moments_of_parts[grid](x, parts, rows, **sizes)
    _normalise[grid](
        x, x if shortcut is None else shortcut, y, parts, moments, weight, bias, *running,
        rows, momentum, eps, adds=shortcut is not None, relu=relu, **sizes,
    )  # fmt: skip
    return y, moments


def norm_backward(
    grad: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, moments: Tensor, added: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of x, γ, β and, if added, the shortcut; y is None unless it was rectified."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    grid, rows, sizes = _shape(x)
    grad_x = torch.empty_like(x)
    grad_shortcut = torch.empty_like(x) if added else None
    parts = x.new_empty(2, grid[0], x.shape[1], dtype=torch.float32)
    grad_weight = torch.empty_like(weight)
    grad_bias = torch.empty_like(weight)
    relu = y is not None
    tensors = grad, x, y if relu else x
    _sums_of_parts[grid](*tensors, parts, moments, rows, relu=relu, **sizes)
    _differentiate[grid](
        *tensors, grad_x, grad_x if grad_shortcut is None else grad_shortcut, parts, moments,
        weight, grad_weight, grad_bias, rows, adds=added, relu=relu, **sizes,
    )  # fmt: skip
    return grad_x, grad_weight, grad_bias, grad_shortcut


def _shape(x: Tensor) -> tuple[tuple[int, int], int, dict[str, int]]:
    """The grid (parts, blocks of channels), the number of rows, and sizes known when compiling."""
    channels = x.shape[1]
    rows = x.numel() // x.shape[1]
    width = min(channels, MOST_CHANNELS)
    tile = TILE // width
    tiles = triton.cdiv(triton.cdiv(rows, tile), PARTS)  # per program
    parts = triton.cdiv(rows, tile * tiles)
    # A program reads all parts at once, so their number is padded to a power of two.
    padded = triton.next_power_of_2(parts)
    sizes = {"channels": channels, "width": width, "tile_rows": tile, "tiles": tiles}
    sizes |= {"padded": padded, "unrolled": UNROLLED, "num_warps": WARPS}
    return (parts, channels // width), rows, sizes


@triton.jit
def _tile(
    t, rows,
    channels: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr, tiles: tl.constexpr,
):  # fmt: skip
    """Places `[tile_rows, width]` of tile t of this program, and which of its rows exist
    `[tile_rows, 1]`.
    """
    row = (tl.program_id(0) * tiles + t) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.program_id(1) * width + tl.arange(0, width)[None, :]
    return row.to(tl.int64) * channels + column, row < rows


@triton.jit
def _moments_of_parts(
    x_at, parts_at, rows,
    channels: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr, tiles: tl.constexpr,
    padded: tl.constexpr, unrolled: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squares around it, of each part. Both are computed relative to the part's
    first row, so that no digits cancel.
    """
    column = tl.program_id(1) * width + tl.arange(0, width)
    first = tl.program_id(0).to(tl.int64) * tiles * tile_rows
    shift = tl.load(x_at + first * channels + column).to(tl.float32)
    sums = tl.zeros([tile_rows, width], tl.float32)
    squares = tl.zeros([tile_rows, width], tl.float32)
    for t in tl.range(0, tiles, loop_unroll_factor=unrolled):
        place, there = _tile(t, rows, channels, width, tile_rows, tiles)
        x = tl.load(x_at + place, mask=there, other=0.0).to(tl.float32)
        off = tl.where(there, x - shift[None, :], 0.0)
        sums += off
        squares += off * off
    count = tl.minimum(rows - first, tiles * tile_rows).to(tl.float32)
    total = tl.sum(sums, 0)
    mean = shift + total / count
    around = tl.maximum(tl.sum(squares, 0) - total * (total / count), 0.0)
    place = tl.program_id(0) * channels + column
    tl.store(parts_at + place, mean)
    tl.store(parts_at + tl.num_programs(0) * channels + place, around)


@triton.jit
def _parts(parts_at, channels: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """Both numbers of all parts `[padded, width]` of this program's channels, 0 in the padding."""
    part = tl.arange(0, padded)[:, None]
    column = tl.program_id(1) * width + tl.arange(0, width)[None, :]
    there = part < tl.num_programs(0)
    first_at = parts_at + part * channels + column
    second_at = parts_at + tl.num_programs(0) * channels + part * channels + column
    first = tl.load(first_at, mask=there, other=0.0)
    return first, tl.load(second_at, mask=there, other=0.0)


@triton.jit
def _normalise(
    x_at, shortcut_at, y_at, parts_at, moments_at, weight_at, bias_at,
    running_mean_at, running_var_at, rows, momentum, eps,
    adds: tl.constexpr, relu: tl.constexpr,
    channels: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr, tiles: tl.constexpr,
    padded: tl.constexpr, unrolled: tl.constexpr,
):  # fmt: skip
    means, around = _parts(parts_at, channels, width, padded)
    per_part = tiles * tile_rows
    left = tl.maximum(rows - tl.arange(0, padded) * per_part, 0)
    count = tl.minimum(left, per_part).to(tl.float32)[:, None]
    total = rows.to(tl.float32)
    mean = tl.sum(means * count, 0) / total
    apart = means - mean[None, :]
    variance = tl.sum(around + count * apart * apart, 0) / total
    scale = 1 / tl.sqrt(variance + eps)
    column = tl.program_id(1) * width + tl.arange(0, width)
    if tl.program_id(0) == 0:
        tl.store(moments_at + column, mean)
        tl.store(moments_at + channels + column, scale)
        before = tl.load(running_mean_at + column)
        spread = tl.load(running_var_at + column)
        tl.store(running_mean_at + column, before + momentum * (mean - before))
        unbiased = variance * (total / tl.maximum(total - 1, 1.0))
        tl.store(running_var_at + column, spread + momentum * (unbiased - spread))
    weight = tl.load(weight_at + column)
    bias = tl.load(bias_at + column)
    for t in range(tiles):
        place, there = _tile(t, rows, channels, width, tile_rows, tiles)
        x = tl.load(x_at + place, mask=there, other=0.0).to(tl.float32)
        y = (x - mean[None, :]) * (scale * weight)[None, :] + bias[None, :]
        if adds:
            y += tl.load(shortcut_at + place, mask=there, other=0.0).to(tl.float32)
        if relu:
            y = tl.where(y < 0, 0.0, y)  # a NaN stays one
        tl.store(y_at + place, y.to(y_at.dtype.element_ty), mask=there)


@triton.jit
def _sums_of_parts(
    grad_at, x_at, y_at, parts_at, moments_at, rows, relu: tl.constexpr,
    channels: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr, tiles: tl.constexpr,
    padded: tl.constexpr, unrolled: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g·x̂ of each part, x̂ = (x − μ)/σ: the gradients of β and γ."""
    column = tl.program_id(1) * width + tl.arange(0, width)
    mean = tl.load(moments_at + column)[None, :]
    scale = tl.load(moments_at + channels + column)
    grad_bias = tl.zeros([tile_rows, width], tl.float32)
    grad_weight = tl.zeros([tile_rows, width], tl.float32)
    for t in tl.range(0, tiles, loop_unroll_factor=unrolled):
        place, there = _tile(t, rows, channels, width, tile_rows, tiles)
        grad = tl.load(grad_at + place, mask=there, other=0.0).to(tl.float32)
        if relu:
            grad = tl.where(tl.load(y_at + place, mask=there, other=0.0) > 0, grad, 0.0)
        x = tl.load(x_at + place, mask=there, other=0.0).to(tl.float32)
        grad_bias += grad
        grad_weight += grad * (x - mean)
    place = tl.program_id(0) * channels + column
    tl.store(parts_at + place, tl.sum(grad_bias, 0))
    tl.store(parts_at + tl.num_programs(0) * channels + place, tl.sum(grad_weight, 0) * scale)


@triton.jit
def _differentiate(
    grad_at, x_at, y_at, grad_x_at, grad_shortcut_at, parts_at, moments_at, weight_at,
    grad_weight_at, grad_bias_at, rows,
    adds: tl.constexpr, relu: tl.constexpr,
    channels: tl.constexpr, width: tl.constexpr, tile_rows: tl.constexpr, tiles: tl.constexpr,
    padded: tl.constexpr, unrolled: tl.constexpr,
):  # fmt: skip
    """γ/σ · (g − mean(g) − x̂ · mean(g·x̂))."""
    grad_bias, grad_weight = _parts(parts_at, channels, width, padded)
    grad_bias = tl.sum(grad_bias, 0)
    grad_weight = tl.sum(grad_weight, 0)
    column = tl.program_id(1) * width + tl.arange(0, width)
    if tl.program_id(0) == 0:
        tl.store(grad_bias_at + column, grad_bias)
        tl.store(grad_weight_at + column, grad_weight)
    mean = tl.load(moments_at + column)[None, :]
    scale = tl.load(moments_at + channels + column)[None, :]
    factor = tl.load(weight_at + column)[None, :] * scale
    total = rows.to(tl.float32)
    constant = (grad_bias / total)[None, :]
    slope = (grad_weight / total)[None, :] * scale
    for t in range(tiles):
        place, there = _tile(t, rows, channels, width, tile_rows, tiles)
        grad = tl.load(grad_at + place, mask=there, other=0.0).to(tl.float32)
        if relu:
            grad = tl.where(tl.load(y_at + place, mask=there, other=0.0) > 0, grad, 0.0)
        if adds:
            tl.store(
                grad_shortcut_at + place, grad.to(grad_shortcut_at.dtype.element_ty), mask=there
            )
        x = tl.load(x_at + place, mask=there, other=0.0).to(tl.float32)
        grad_x = factor * (grad - constant - (x - mean) * slope)
        tl.store(grad_x_at + place, grad_x.to(grad_x_at.dtype.element_ty), mask=there)
