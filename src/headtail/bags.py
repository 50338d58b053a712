"""The weighted bag: sparse features times a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from headtail.data.points import Bag
from headtail.errors import HeadtailError


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
    if bag.num_columns != len(weight):  # the kernel would read beyond the table
        raise HeadtailError(
            f"The features have {bag.num_columns:,} columns, but the table {len(weight):,} rows. Give one row a column."
        )
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and sparse:
        return _CpuBag.apply(weight, bag)  # pyright: ignore[reportReturnType]
    return plain_weighted_bag(bag, weight, sparse=sparse)


def plain_weighted_bag(bag: Bag, weight: Float[Tensor, "D d"], *, sparse: bool = False) -> Float[Tensor, "n d"]:
    """The same by torch alone."""
    values = bag.values.to(weight.dtype)
    return F.embedding_bag(
        bag.columns.long(), weight, bag.offsets, mode="sum", per_sample_weights=values, include_last_offset=True, sparse=sparse
    )


_PLACES: dict[int, np.ndarray] = {}
"""A workspace for each table size, kept between steps: nothing of the table's size is made or walked in a step."""


class _CpuBag(torch.autograd.Function):
    """`weighted_bag` by the CPU kernel."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bag: Bag) -> Tensor:
        from headtail.kernels import cpu_bag

        ctx.bag, ctx.shape = bag, weight.shape
        out = torch.empty(len(bag), weight.shape[1])
        cpu_bag.weighted_bag(*_arrays(bag), weight.detach().numpy(), out.numpy(), torch.get_num_threads())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        bag = ctx.bag
        rows, out = _gather_by_column(bag.offsets, bag.columns, bag.values, grads[0], bag.num_columns)
        return torch.sparse_coo_tensor(rows[None], out, ctx.shape, is_coalesced=True, check_invariants=False), None


def sum_rows(rows: Int64[Tensor, " k"], values: Float32[Tensor, "k d"], num_rows: int) -> tuple[Tensor, Tensor]:
    """The different rows, ascending, and the sum of the values that share each: what coalescing does, by the CPU kernel.

    >>> sum_rows(torch.tensor([4, 1, 4]), torch.ones(3, 2), num_rows=5)
    (tensor([1, 4]), tensor([[1., 1.],
            [2., 2.]]))
    """
    return _gather_by_column(torch.arange(len(rows) + 1), rows, torch.ones(len(rows)), values, num_rows)


def _gather_by_column(offsets: Tensor, columns: Tensor, values: Tensor, grad: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """The gradient of a bag is a bag: row c collects, over the points that hold column c, their gradients times their values."""
    from headtail.kernels import cpu_bag

    place = _PLACES.get(num_columns)
    if place is None:
        place = _PLACES[num_columns] = np.full(num_columns, -1, dtype=np.int64)
    rows, starts = np.empty(len(columns), np.int64), np.empty(len(columns) + 1, np.int64)
    points, turned = np.empty(len(columns), np.int64), np.empty(len(columns), np.float32)
    count = cpu_bag.transpose(offsets.numpy(), columns.numpy(), values.numpy(), place, rows, starts, points, turned)
    out = torch.empty(count, grad.shape[1])
    cpu_bag.weighted_bag(starts[: count + 1], points, turned, grad.contiguous().numpy(), out.numpy(), torch.get_num_threads())
    return torch.from_numpy(rows[:count]), out


def _arrays(bag: Bag) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return bag.offsets.numpy(), bag.columns.numpy(), bag.values.numpy()
