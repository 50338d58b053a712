"""The tensors of all ranks, one behind the other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.collectives.ranks import Ranks
from headtail.errors import HeadtailError, check_kind


def gather(tensor: Shaped[Tensor, "n ..."], group: Any = None) -> Shaped[Tensor, "N ..."]:
    """The rows of all ranks, in their order; ranks may have different numbers of rows.

    Gradients are exact: a rank's rows get the sum of what the losses of all ranks say about them.
    Every rank must call it.

    Args:
        tensor: `[n, …]` embeddings, targets or other numbers of this rank.
        group: the process group, or a mesh with one dimension; by default all processes.
    """
    check_kind("tensor", tensor, Tensor, "item_tower(items)")
    if tensor.dim() == 0:
        raise HeadtailError("`tensor` must have rows to gather, but has no dimension.")
    ranks = Ranks.of(group)
    ranks.check_device("tensor", tensor)
    sizes = _sizes(tensor, ranks)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Gather.apply(tensor, ranks, sizes)  # pyright: ignore[reportReturnType]
    return gather_rows(tensor.detach(), ranks, sizes)


def gather_rows(tensor: Tensor, ranks: Ranks, sizes: list[int]) -> Tensor:
    """The rows of all ranks where it is known how many each of them has."""
    most = max(sizes)
    padded = tensor
    if len(tensor) < most:
        padded = tensor.new_zeros(most, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
    every = ranks.gather(padded)
    if min(sizes) == most:
        return every.flatten(0, 1)
    return torch.cat([rows[:size] for rows, size in zip(every, sizes, strict=True)])


def _sizes(tensor: Tensor, ranks: Ranks) -> list[int]:
    """The number of rows of each rank, whose other axes must be the same."""
    own = [len(tensor), tensor.dim(), tensor.shape[1:].numel()]
    sizes, *others = zip(*ranks.numbers(own, tensor.device), strict=True)
    for numbers in others:
        if len(set(numbers)) > 1:
            raise HeadtailError(
                f"Ranks gather tensors that differ in more than their first axis: here it is "
                f"{list(tensor.shape)}. Make the others equal."
            )
    return list(sizes)


class _Gather(torch.autograd.Function):
    """Rows of all ranks; backward sums the gradients of all ranks for the own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks, sizes: list[int]) -> Tensor:
        ctx.ranks = ranks
        ctx.start = sum(sizes[: ranks.rank])
        ctx.size = len(tensor)
        return gather_rows(tensor, ranks, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.ranks.group)
        return total.narrow(0, ctx.start, ctx.size), None, None
