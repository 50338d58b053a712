"""Dropout that costs little."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.kernels.compiled import HAS_TRITON
from headtail.kernels.gradient import RowGradient
from headtail.rows.gradients import is_accumulated
from headtail.rows.link import taker_of


def dropout(input: Tensor, share: float, training: bool = True) -> Tensor:
    """Zero a random share of the numbers and scale the others up, so that the mean stays.

    On a CPU eight decisions are taken from each 64-bit random number, which is several times as
    fast as torch's one each: there the share is rounded to a multiple of 1/256, and the scale is
    that of the rounded share.

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
    from headtail.kernels.cpu import dropout as cpu_dropout

    drop = cpu_dropout.drop_for(input, share)
    return input * ((drop.noise >= drop.share) * drop.scale)


def shift_and_drop(input: Tensor, bias: Tensor, share: float, training: bool = True) -> Tensor:
    """`dropout(input + bias, share)`, in one pass where there is a kernel, which overwrites
    `input`.
    """
    kernels = dropout_kernels(input) if training and share > 0 and input.dim() == 2 else None
    if kernels is None:
        return dropout(input + bias, share, training)
    return _ShiftAndDrop.apply(kernels, input, bias, share)  # pyright: ignore[reportReturnType]


def dropout_kernels(input: Tensor) -> Any:
    """The module whose kernels take this, or None."""
    kernels = None
    if input.dtype != torch.float32 or not input.is_contiguous():
        return None
    if input.device.type == "cpu":
        from headtail.kernels.cpu import dropout as kernels
    elif input.device.type == "cuda" and HAS_TRITON:
        from headtail.kernels.triton import dropout as kernels
    return kernels


class _ShiftAndDrop(torch.autograd.Function):
    """`shift_and_drop` by a kernel."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, input: Tensor, bias: Tensor, share: float) -> Tensor:
        ctx.kernels = kernels
        ctx.bias = bias
        ctx.drop = kernels.drop_for(input, share)
        kernels.forward(input.detach(), bias.detach(), ctx.drop)
        ctx.mark_dirty(input)
        return input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_input, parts = ctx.kernels.backward(grads[0].contiguous(), ctx.drop)
        return None, of_input, sum_of_parts(ctx.bias, parts, ctx.next_functions[1][0]), None


def sum_of_parts(bias: Tensor, parts: Tensor, node: Any) -> Tensor | None:
    """The sum of a vector's gradient in parts; None if its optimiser has applied it at once."""
    taker = taker_of(bias)
    if taker is None or not taker.at_once or not is_accumulated(node):
        return parts.sum(0)
    rows, points = _one_row(len(parts), parts.device)
    taker.take(bias, RowGradient(rows, parts, points, grouped=True))
    return None


@cache
def _one_row(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rows, points) of n entries for row 0."""
    return torch.zeros(n, dtype=torch.int64, device=device), torch.arange(n, device=device)
