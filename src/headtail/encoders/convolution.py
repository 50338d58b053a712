"""Convolutions without bias: headtail's kernels where they are faster, torch's elsewhere."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.kernels.dispatch import convolution_kernels


def convolve(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """`F.conv2d(x, weight, stride=stride, padding=padding)`, by kernels where they take it.

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
    kernels = convolution_kernels(x, weight, stride, padding)
    if kernels is None:
        return F.conv2d(x, weight, stride=stride, padding=padding)
    return _Convolve.apply(kernels, x, weight)  # pyright: ignore[reportReturnType]


class _Convolve(torch.autograd.Function):
    """`F.conv2d(x, weight, padding=1)` by kernels."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.kernels = kernels
        ctx.save_for_backward(x, weight)
        return kernels.conv2d(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        return None, *ctx.kernels.conv2d_backward(grad, *ctx.saved_tensors)
