"""The weighted bag: sparse features times a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headtail.data.points import Bag


def weighted_bag(bag: Bag, weight: Float[Tensor, "D d"], *, sparse: bool = False) -> Float[Tensor, "n d"]:
    r"""$h_i = \sum_j x_{ij} W_j$: each point's rows of a table, scaled by its feature values and added up.

    Args:
        bag: the points' features.
        weight: `[D, d]` the table.
        sparse: give `weight` a row-sparse gradient; its rows are then summed already.

    >>> bag = Bag(torch.tensor([0, 2, 2]), torch.tensor([0, 2]).int(), torch.tensor([1.0, 0.5]), 3)
    >>> weighted_bag(bag, torch.eye(3))
    tensor([[1.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and sparse:
        return _CpuBag.apply(weight, bag)  # pyright: ignore[reportReturnType]
    return plain_weighted_bag(bag, weight, sparse=sparse)


def plain_weighted_bag(bag: Bag, weight: Float[Tensor, "D d"], *, sparse: bool = False) -> Float[Tensor, "n d"]:
    """The same by torch alone."""
    values = bag.values.to(weight.dtype)
    return F.embedding_bag(
        bag.columns.long(), weight, bag.offsets, mode="sum", per_sample_weights=values, include_last_offset=True, sparse=sparse
    )


class _CpuBag(torch.autograd.Function):
    """`weighted_bag` by the CPU kernel."""

    places: dict[int, np.ndarray] = {}  # noqa: RUF012 - one workspace a table size, kept between steps: nothing of size D a step

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bag: Bag) -> Tensor:
        from headtail.kernels import cpu_bag

        ctx.bag, ctx.shape = bag, weight.shape
        out = torch.empty(len(bag), weight.shape[1])
        cpu_bag.weighted_bag(*_arrays(bag), weight.detach().numpy(), out.numpy(), torch.get_num_threads())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        from headtail.kernels import cpu_bag

        num_columns, dim = ctx.shape
        offsets, columns, values = _arrays(ctx.bag)
        place = _CpuBag.places.get(num_columns)
        if place is None:
            place = _CpuBag.places[num_columns] = np.full(num_columns, -1, dtype=np.int64)
        rows, starts = np.empty(len(columns), np.int64), np.empty(len(columns) + 1, np.int64)
        points, turned = np.empty_like(columns), np.empty_like(values)
        count = cpu_bag.transpose(offsets, columns, values, place, rows, starts, points, turned)
        out = torch.empty(count, dim)
        # The gradient of a bag is a bag: row c collects the points that hold column c.
        grad = grads[0].contiguous().numpy()
        cpu_bag.weighted_bag(starts[: count + 1], points, turned, grad, out.numpy(), torch.get_num_threads())
        index = torch.from_numpy(rows[:count])[None]
        return torch.sparse_coo_tensor(index, out, ctx.shape, is_coalesced=True, check_invariants=False), None


def _arrays(bag: Bag) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return bag.offsets.numpy(), bag.columns.numpy(), bag.values.numpy()
