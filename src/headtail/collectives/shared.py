"""Sums over ranks inside a loss that every rank computes whole.

All ranks compute the same loss from their parts, so the gradient of a sum is known to each of them,
and backward passes send nothing. Only hidden states, which each rank has for its own examples, get
theirs from all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks


def sum_of(part: Tensor, ranks: Ranks) -> Tensor:
    """The sum of all ranks' parts, from which every rank computes the same."""
    return _Sum.apply(part, ranks)  # pyright: ignore[reportReturnType]


def log_sum_exp_of(terms: Float[Tensor, "p m"], ranks: Ranks) -> Float64[Tensor, " p"]:
    """log Σ e^term over the terms of all ranks, in float64; from it every rank computes the same.

    Ranks may have different numbers of terms, and none.
    """
    return _LogSumExp.apply(terms, ranks)  # pyright: ignore[reportReturnType]


def own_of(values: Float[Tensor, " p"], own: slice, ranks: Ranks) -> Float[Tensor, " own"]:
    """This rank's part of values that every rank computes whole, for losses that each rank sums or
    weighs by itself: backward puts the gradients of all parts together.
    """
    return _Own.apply(values, own, ranks)  # pyright: ignore[reportReturnType]


def for_all(parameter: Tensor, ranks: Ranks) -> Tensor:
    """A value that every rank uses in its part of the loss; its gradient is that of all parts."""
    return _ForAll.apply(parameter, ranks)  # pyright: ignore[reportReturnType]


def states_of_all(hidden: Float[Tensor, "b d"], ranks: Ranks, sizes: list[int]) -> Tensor:
    """`[B, d]` hidden states of all ranks, one behind the other.

    Backward multiplies by the number of ranks, because what averages the gradients of an encoder
    (`DistributedDataParallel`, FSDP) divides by it.
    """
    return _States.apply(hidden, ranks, sizes)  # pyright: ignore[reportReturnType]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        total = part.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ranks.group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, terms: Tensor, ranks: Ranks) -> Tensor:
        highest = terms.new_full((len(terms),), -torch.inf)
        if terms.shape[1]:
            highest = terms.amax(1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=ranks.group)
        # Where no rank has a term, e^(−∞ − 0) is 0, and e^(−∞ + ∞) would not be a number.
        highest = highest.masked_fill(highest == -torch.inf, 0.0)
        total = (terms - highest[:, None]).exp().sum(1)
        dist.all_reduce(total, group=ranks.group)
        ctx.save_for_backward(terms, highest, total)
        return total.double().log() + highest.double()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        terms, highest, total = ctx.saved_tensors
        # From the sum and not from its logarithm, whose last digits are worth more.
        share = (grads[0] / total.double()).to(terms.dtype).masked_fill(total == 0, 0.0)
        return share[:, None] * (terms - highest[:, None]).exp(), None


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, own: slice, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        ctx.own = own
        ctx.shape = values.shape
        return values[own].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        every = grads[0].new_zeros(ctx.shape)
        every[ctx.own] = grads[0]
        dist.all_reduce(every, group=ctx.ranks.group)
        return every, None, None


class _ForAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.ranks.group)
        return total, None


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ranks: Ranks, sizes: list[int]) -> Tensor:
        ctx.ranks = ranks
        ctx.sizes = sizes
        return gather_rows(hidden.detach(), ranks, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks, sizes = ctx.ranks, ctx.sizes
        most = max(sizes)
        grad = grads[0]
        parts = grad.new_zeros(ranks.size, most, *grad.shape[1:])
        for part, rows in zip(parts, grad.split(sizes), strict=True):
            part[: len(rows)] = rows
        own = grad.new_empty(most, *grad.shape[1:])
        ranks.sum_into(own, parts.flatten(0, 1), times=ranks.size)
        return own[: sizes[ranks.rank]], None, None
