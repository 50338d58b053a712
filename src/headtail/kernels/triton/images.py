"""Images prepared for a network on CUDA: shifted, mirrored, normalised, cast and put channels last
by one kernel.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 512
"""Pixels per program."""


def prepared(
    images: Tensor, chance: Tensor | None, mean: Tensor, std: Tensor, pad: int, dtype: torch.dtype
) -> Tensor:
    """Normalised images, channels last in memory.

    Args:
        images: `[n, 3, h, w]` uint8, contiguous.
        chance: `[n]` int64, where to shift each and whether to mirror it, as `moved` reads it; None
            leaves them as they are.
        mean: `[3]` and
        std: `[3]` float32, of the channels.
        pad: the largest shift in pixels.
        dtype: of the result.
    """
    n, channels, height, width = images.shape
    out = torch.empty(n, height, width, channels, dtype=dtype, device=images.device)
    total = n * height * width
    _prepared[(triton.cdiv(total, PIXELS),)](
        images, images if chance is None else chance, mean, std, out, total, height, width,
        moves=chance is not None, pad=pad, block=PIXELS,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


@triton.jit
def _prepared(
    images_at, chance_at, mean_at, std_at, out_at, total, height, width,
    moves: tl.constexpr, pad: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside_batch = pixel < total
    image = pixel // (height * width)
    row = pixel // width % height
    column = pixel % width
    inside = inside_batch
    if moves:
        side = 2 * pad + 1
        chance = tl.load(chance_at + image, mask=inside_batch, other=0)
        row += chance % side - pad
        column = tl.where(chance >= side * side, width - 1 - column, column)
        column += chance // side % side - pad
        inside = inside_batch & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    for channel in tl.static_range(3):
        place = ((image * 3 + channel) * height + row) * width + column
        value = tl.load(images_at + place, mask=inside, other=0)
        value = (value.to(tl.float32) - tl.load(mean_at + channel)) / tl.load(std_at + channel)
        tl.store(out_at + pixel * 3 + channel, value.to(out_at.dtype.element_ty), mask=inside_batch)
