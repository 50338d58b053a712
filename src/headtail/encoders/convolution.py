"""Convolutions without bias: headtail's kernels where they are faster, torch's elsewhere."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.kernels.compiled import HAS_TRITON

BY_KERNELS = (16, 32, 64)
"""Numbers of channels, in and out, for which the kernels are used, of the 16, 32 and 64 that they
take; `()` is torch's for all.
"""


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """`F.conv2d(x, weight, stride=stride, padding=padding)`, by kernels for bfloat16 on a GPU, 3 ×
    3, and few channels.

    Args:
        x: `[n, C, h, w]`.
        weight: `[D, C, k, k]`.
        stride: pixels from one output to the next.
        padding: zeros around x.

    >>> convolve(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3), padding=1)[0, 0]
    tensor([[4., 6., 4.],
            [6., 9., 6.],
            [4., 6., 4.]])
    """
    if fits(x, weight, stride, padding):
        return _Convolve.apply(x, weight)  # pyright: ignore[reportReturnType]
    return F.conv2d(x, weight, stride=stride, padding=padding)


def fits(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Whether the kernels take these: bfloat16 on a GPU, channels last, 3 × 3 and the size kept,
    `BY_KERNELS` channels.
    """
    if not HAS_TRITON or x.device.type != "cuda" or torch.compiler.is_compiling():
        return False
    out, channels, *size = weight.shape
    numbers = (
        x.dtype == weight.dtype == torch.bfloat16
        and 0 < x.numel() // channels * max(channels, out) < 2**31
    )
    shape = (
        size == [3, 3] and stride == padding == 1 and channels in BY_KERNELS and out in BY_KERNELS
    )
    return (
        numbers
        and shape
        and all(one.is_contiguous(memory_format=torch.channels_last) for one in (x, weight))
    )


class _Convolve(torch.autograd.Function):
    """`F.conv2d(x, weight, padding=1)` by the kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        from headtail.kernels.triton import convolution as cuda_conv

        ctx.save_for_backward(x, weight)
        return cuda_conv.conv2d(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from headtail.kernels.triton import convolution as cuda_conv

        return cuda_conv.conv2d_backward(
            grads[0].contiguous(memory_format=torch.channels_last), *ctx.saved_tensors
        )
