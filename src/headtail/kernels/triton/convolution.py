"""3 × 3 convolutions of few channels on CUDA, and gradients of their input and filter: no atomics,
one order of summation.

Images and filters are channels last. A *place* is one pixel of the output or, where channels are
few, two neighbouring ones: both together see a run of four pixels in a row of the input, and its
4 · C numbers are contiguous and a power of two. So a convolution is three products of such windows
with a filter written twice, once for each of the two pixels, one pixel apart. Pixels that one of
the two does not see are multiplied by 0, so that a number that is not finite makes both NaN.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportReturnType=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiles(NamedTuple):
    """How the work is divided for a number of channels.

    One stage reads through the first-level cache, which holds a window's neighbours; more stages
    bypass it, but start loading earlier.
    """

    joined: int
    """Pixels per place: 2, or 1 where the products of two would not fit into registers."""
    places: int
    """Places per program in a convolution: at least 64, which tensor cores need, and so few that
    the grid fills 132 processors.
    """
    stages: int
    """Windows being loaded at a time in a convolution."""
    depth: int
    """Places at a time in the gradient of the filter."""
    depth_stages: int
    """Windows being loaded at a time in it."""
    depth_warps: int
    """Warps per program in it; 8 where one stage has much to read."""
    parts: int
    """The most programs that share the places in it; each writes a filter in float32."""
    rows_together: bool
    """Whether a program of it has all three rows of a window, so that a gradient is read once."""


TILES = {
    16: Tiles(joined=2, places=256, stages=1, depth=64, depth_stages=3, depth_warps=4,
              parts=132, rows_together=True),
    32: Tiles(joined=2, places=128, stages=3, depth=64, depth_stages=3, depth_warps=8,
              parts=44, rows_together=False),
    64: Tiles(joined=1, places=64, stages=4, depth=64, depth_stages=3, depth_warps=4,
              parts=16, rows_together=False),
}  # fmt: skip
"""By the larger number of channels, in or out."""
WARPS = 4
"""Warps per program that convolves."""
SUMMED = tl.constexpr(8192)
"""Numbers of the filter's gradient that it sums at a time besides."""


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """`F.conv2d(x, weight, padding=1)`.

    Args:
        x: `[n, C, h, w]`, channels last; C and D are 16, 32 or 64.
        weight: `[D, C, 3, 3]`, channels last, of the same dtype.

    Returns:
        `[n, D, h, w]`, channels last.
    """
    y = _image(x, weight.shape[0])
    tiles, sizes, places = _shape(x, weight.shape[0])
    _convolve[(triton.cdiv(places, tiles.places),)](
        x, weight, y, x, x, places, 0,
        sums=False, padded=1, tile=tiles.places, stages=tiles.stages, **sizes,
    )  # fmt: skip
    return y


def conv2d_backward(
    grad: Tensor, x: Tensor, weight: Tensor, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the filter, from that of the output: all of them channels last.

    The first kernel sums windows times gradients over parts of the places. The second convolves the
    gradient with the mirrored filter, which is the gradient of x, and also sums the parts, which
    saves a third kernel. `tiles` replaces those in `TILES`.
    """
    out, channels = weight.shape[:2]
    tiles, sizes, places = _shape(x, out, tiles)
    turns = triton.cdiv(triton.cdiv(places, tiles.depth), tiles.parts)  # per program
    parts = triton.cdiv(places, tiles.depth * turns)
    steps = 1 if tiles.rows_together else 3 if tiles.joined == 2 else 9
    each = x.new_empty(parts, 9, channels, out, dtype=torch.float32)
    _filter_parts[parts, steps](
        x, grad, each, places, turns,
        tile=tiles.depth, stages=tiles.depth_stages, together=tiles.rows_together,
        **sizes | {"num_warps": tiles.depth_warps},
    )  # fmt: skip
    grad_x = _image(x, channels)
    grad_weight = torch.empty_like(weight)
    sizes |= {"channels": out, "out": channels, "padded": triton.next_power_of_2(parts)}
    _convolve[(triton.cdiv(places, tiles.places),)](
        grad, weight, grad_x, each, grad_weight, places, parts,
        sums=True, tile=tiles.places, stages=tiles.stages, **sizes,
    )  # fmt: skip
    return grad_x, grad_weight


def _image(x: Tensor, channels: int) -> Tensor:
    """Room for as many pixels as x has, channels last."""
    n, _, height, width = x.shape
    return x.new_empty(n, height, width, channels).permute(0, 3, 1, 2)


def _shape(x: Tensor, out: int, tiles: Tiles | None = None) -> tuple[Tiles, dict[str, Any], int]:
    """How to divide the work, sizes known when compiling, and the number of places."""
    n, channels, height, width = x.shape
    tiles = tiles or TILES[max(channels, out)]
    sizes: dict[str, Any] = {"height": height, "width": width, "channels": channels, "out": out}
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    sizes |= {"joined": tiles.joined, "precision": precision, "num_warps": WARPS}
    return tiles, sizes, n * height * triton.cdiv(width, tiles.joined)


@triton.jit
def _places(
    first, tile: tl.constexpr, height: tl.constexpr, width: tl.constexpr, joined: tl.constexpr
):
    """Place numbers, their first pixel's number, y and x, each `[tile, 1]`."""
    columns: tl.constexpr = (width + joined - 1) // joined
    place = first + tl.arange(0, tile)[:, None]
    row = place // columns
    x = place % columns * joined
    return place, row * width + x, row % height, x


@triton.jit
def _window(
    x_at, step, place, pixel, y, x, places,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, joined: tl.constexpr,
):  # fmt: skip
    """The input of places at a step: `[tile, 4 · C]`, four pixels of a row, for joined pixels; else
    `[tile, C]`, one of nine pixels.
    """
    run: tl.constexpr = 4 * channels if joined == 2 else channels
    if joined == 2:
        across = -1
        down = step - 1
    else:
        across = step % 3 - 1
        down = step // 3 - 1
    number = tl.arange(0, run)[None, :]
    column = x + across + number // channels
    row = y + down
    there = (place < places) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = x_at + ((pixel + down * width + across) * channels + number)
    return tl.load(at, mask=there, other=0.0)


@triton.jit
def _filter(
    weight_at, step,
    mirrored: tl.constexpr, channels: tl.constexpr, out: tl.constexpr, joined: tl.constexpr,
):  # fmt: skip
    """The filter for windows of this step: `[4 · C, 2 · D]`, 0 where a pixel does not see another,
    or `[C, D]`.
    """
    run: tl.constexpr = 4 * channels if joined == 2 else channels
    number = tl.arange(0, run)[:, None]
    output = tl.arange(0, joined * out)[None, :]
    channel = number % channels
    to = output % out
    if joined == 2:
        across = number // channels - output // out
        tap = step * 3 + across
        there = (across >= 0) & (across < 3)
    else:
        tap = step
        there = (number >= 0) & (output >= 0)
    at = (channel * 9 + 8 - tap) * out + to if mirrored else (to * 9 + tap) * channels + channel
    return tl.load(weight_at + at, mask=there, other=0.0)


@triton.jit
def _convolve(
    x_at, weight_at, y_at, parts_at, grad_weight_at, places, parts,
    sums: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, out: tl.constexpr,
    joined: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Windows times filters. If `sums`, x is a gradient, filters are mirrored, and parts of the
    filter's gradient are summed too.
    """
    if sums:
        _sum_parts(parts_at, grad_weight_at, parts, padded, out, channels)
    place, pixel, y, x = _places(tl.program_id(0) * tile, tile, height, width, joined)
    total = tl.zeros([tile, joined * out], tl.float32)
    for step in tl.range(0, 3 if joined == 2 else 9, num_stages=stages):
        window = _window(x_at, step, place, pixel, y, x, places, height, width, channels, joined)
        weight = _filter(weight_at, step, sums, channels, out, joined)
        total = tl.dot(window, weight, total, input_precision=precision)
    number = tl.arange(0, joined * out)[None, :]
    there = (place < places) & (x + number // out < width)
    tl.store(y_at + (pixel * out + number), total.to(y_at.dtype.element_ty), mask=there)


@triton.jit
def _filter_parts(
    x_at, grad_at, parts_at, places, turns,
    tile: tl.constexpr, stages: tl.constexpr, together: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, out: tl.constexpr,
    joined: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Σ over a part's places of window ⊗ gradient: the gradient of the result of `_filter`, reduced
    to `[9, C, D]`.
    """
    run: tl.constexpr = 4 * channels if joined == 2 else channels
    number = tl.arange(0, joined * out)[None, :]
    step = tl.program_id(1)
    total = tl.zeros([run, joined * out], tl.float32)
    middle = tl.zeros([run, joined * out], tl.float32)
    lower = tl.zeros([run, joined * out], tl.float32)
    for turn in tl.range(0, turns, num_stages=stages):
        first = (tl.program_id(0) * turns + turn) * tile
        place, pixel, y, x = _places(first, tile, height, width, joined)
        there = (place < places) & (x + number // out < width)
        grad = tl.load(grad_at + (pixel * out + number), mask=there, other=0.0)
        window = _window(x_at, step, place, pixel, y, x, places, height, width, channels, joined)
        if together:  # all loads first, so that the program waits once
            second = _window(x_at, 1, place, pixel, y, x, places, height, width, channels, joined)
            third = _window(x_at, 2, place, pixel, y, x, places, height, width, channels, joined)
            middle = tl.dot(tl.trans(second), grad, middle, input_precision=precision)
            lower = tl.dot(tl.trans(third), grad, lower, input_precision=precision)
        total = tl.dot(tl.trans(window), grad, total, input_precision=precision)
    at = parts_at + tl.program_id(0) * (9 * channels * out)
    _store_taps(at, total, step, channels, out, joined)
    if together:
        _store_taps(at, middle, 1, channels, out, joined)
        _store_taps(at, lower, 2, channels, out, joined)


@triton.jit
def _store_taps(at, total, step, channels: tl.constexpr, out: tl.constexpr, joined: tl.constexpr):
    """A tap's gradient is the left pixel's sum for it plus the right pixel's, one pixel further."""
    place = tl.arange(0, channels)[:, None] * out + tl.arange(0, out)[None, :]
    if joined == 1:
        tl.store(at + step * (channels * out) + place, total)
    else:
        # [4, C, 2, D] in its pieces: the window's pixel (two bits), and the output's
        pieces = tl.permute(tl.reshape(total, [2, 2, channels, 2, out]), [2, 4, 0, 1, 3])
        left, right = tl.split(pieces)
        left_even, left_odd = tl.split(left)
        right_even, right_odd = tl.split(right)
        left_0, left_2 = tl.split(left_even)
        left_1, _ = tl.split(left_odd)
        _, right_2 = tl.split(right_even)
        right_1, right_3 = tl.split(right_odd)
        at += step * (3 * channels * out) + place
        tl.store(at, left_0 + right_1)
        tl.store(at + channels * out, left_1 + right_2)
        tl.store(at + 2 * channels * out, left_2 + right_3)


@triton.jit
def _sum_parts(
    parts_at, weight_at, parts, padded: tl.constexpr, channels: tl.constexpr, out: tl.constexpr
):
    """From `[parts, 9, C, D]` to `[D, 9, C]`: this program's share of the weights."""
    weights: tl.constexpr = 9 * channels * out
    block: tl.constexpr = SUMMED // padded
    for first in range(tl.program_id(0) * block, weights, tl.num_programs(0) * block):
        number = first + tl.arange(0, block)
        part = tl.arange(0, padded)[:, None]
        there = (part < parts) & (number[None, :] < weights)
        values = tl.load(parts_at + (part * weights + number[None, :]), mask=there, other=0.0)
        total = tl.sum(values, 0)
        tap = number // (channels * out)
        channel = number // out % channels
        to = number % out
        at = weight_at + ((to * 9 + tap) * channels + channel)
        tl.store(at, total.to(weight_at.dtype.element_ty), mask=number < weights)
