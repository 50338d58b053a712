"""Dropout that costs little on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def dropout(input: Tensor, share: float, training: bool = True) -> Tensor:
    """Zero a random share of the numbers and scale the others up, so that the mean stays.

    On a CPU eight decisions are taken from each 64-bit random number, which is several times as fast as torch's one each: there the
    share is rounded to a multiple of 1/256, and the scale is that of the rounded share.

    Args:
        input: any shape.
        share: from 0 up to but not including 1.
        training: False leaves everything as it is.

    >>> out = dropout(torch.ones(1000), 0.5)
    >>> sorted(set(out.tolist()))
    [0.0, 2.0]
    """
    if not training or share == 0:
        return input
    if input.device.type != "cpu":
        return F.dropout(input, share)
    noise, dropped = _noise(input.shape, share)
    return input * ((noise >= dropped) * (256 / (256 - dropped)))


def shift_and_drop(input: Tensor, bias: Tensor, share: float, training: bool = True) -> Tensor:
    """`dropout(input + bias, share)`; on a CPU in one pass, which overwrites `input`."""
    if not training or share == 0 or input.device.type != "cpu" or input.dtype != torch.float32 or input.dim() != 2:
        return dropout(input + bias, share, training)
    return _ShiftAndDrop.apply(input, bias, share)  # pyright: ignore[reportReturnType]


class _ShiftAndDrop(torch.autograd.Function):
    """`shift_and_drop` by the CPU kernel."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor, share: float) -> Tensor:
        from headtail.kernels import cpu_dropout

        ctx.drop = random_bytes(input.shape, share)
        cpu_dropout.forward(input.detach().numpy(), bias.detach().numpy(), *ctx.drop)
        ctx.mark_dirty(input)
        return input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from headtail.kernels import cpu_dropout

        grad = grads[0].contiguous()
        of_input, of_bias = torch.empty_like(grad), torch.empty(grad.shape[1])
        cpu_dropout.backward(grad.numpy(), of_input.numpy(), of_bias.numpy(), *ctx.drop)
        return of_input, of_bias, None


def random_bytes(shape: torch.Size, share: float) -> tuple[np.ndarray, int, np.float32]:
    """(a random byte for each number, the value below which it is dropped, what the others are multiplied by)."""
    noise, dropped = _noise(shape, share)
    return noise.numpy(), dropped, np.float32(256 / (256 - dropped))


def _noise(shape: torch.Size, share: float) -> tuple[Tensor, int]:
    """A random byte for each number, and the value below which it is dropped."""
    from headtail.kernels import cpu_dropout

    words = torch.empty((shape.numel() + 7) // 8, dtype=torch.int64)
    cpu_dropout.noise(int(torch.randint(2**62, ())), words.numpy().view(np.uint64))
    return words.view(torch.uint8)[: shape.numel()].reshape(shape), min(255, max(1, round(share * 256)))
