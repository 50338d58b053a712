"""The weighted bag: sparse features times a table."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.data.bag import Bag, Picked
from headtail.device.side_streams import side_stream, wait_for
from headtail.errors import HeadtailError
from headtail.kernels.dispatch import bag_kernels
from headtail.kernels.gradient import RowGradient
from headtail.rows.gradients import as_dense, for_autograd


def weighted_bag(
    bag: Bag | Picked,
    weight: Float[Tensor, "D d"],
    *,
    normalise: bool = False,
    sparse: bool = False,
) -> Float[Tensor, "n d"]:
    r"""$h_i = \sum_j x_{ij} W_j$: each point's rows of a table, scaled by its feature values and
    added up.

    Args:
        bag: the points' features.
        weight: `[D, d]` the table.
        normalise: scale each point's features to length 1; a point without any stays as it is.
        sparse: give `weight` a row-sparse gradient.

    >>> bag = Bag(torch.tensor([0, 2, 2]), torch.tensor([0, 2]).int(), torch.tensor([1.0, 0.5]), 3)
    >>> weighted_bag(bag, torch.eye(3))
    tensor([[1.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """
    check_bag(bag, weight)
    kernels = bag_kernels(weight) if sparse or weight.device.type == "cuda" else None
    if kernels is not None:
        if isinstance(bag, Bag):
            every_row = torch.arange(len(bag), device=weight.device)
            bag = Picked(bag, every_row, len(bag.columns))
        learns = weight.requires_grad and torch.is_grad_enabled()
        return _WeightedBag.apply(kernels, weight, bag, normalise, sparse, learns)  # pyright: ignore[reportReturnType]
    return plain_weighted_bag(bag, weight, normalise=normalise, sparse=sparse)


def check_bag(bag: Bag | Picked, weight: Tensor) -> None:
    """Refuse a table of another size, and a bag that is not right: a kernel would read beyond their
    end. Kernels refuse picked rows that the bag does not have.
    """
    bag = bag.bag if isinstance(bag, Picked) else bag
    if bag.num_columns != len(weight):
        raise HeadtailError(
            f"The features have {bag.num_columns:,} columns, but the table {len(weight):,} rows. "
            "Make them equal."
        )
    bag.check()


def plain_weighted_bag(
    bag: Bag | Picked,
    weight: Float[Tensor, "D d"],
    *,
    normalise: bool = False,
    sparse: bool = False,
) -> Float[Tensor, "n d"]:
    """`weighted_bag` by torch alone."""
    bag = bag.gathered() if isinstance(bag, Picked) else bag
    values = bag.values.to(weight.dtype)
    if normalise:
        values = values / length_of_each_entry(bag).to(weight.dtype)
    return F.embedding_bag(
        bag.columns.long(),
        weight,
        bag.offsets,
        mode="sum",
        per_sample_weights=values,
        include_last_offset=True,
        sparse=sparse,
    )


def lengths(bag: Bag) -> Float[Tensor, " n"]:
    """`[n]` the Euclidean length of each point's features."""
    return torch.segment_reduce(
        bag.values.square(), "sum", offsets=bag.offsets, initial=0.0, unsafe=True
    ).sqrt()


def length_of_each_entry(bag: Bag) -> Float[Tensor, " nnz"]:
    """`[nnz]` the length of the point that each entry belongs to, never 0."""
    per_point = lengths(bag).clamp(min=torch.finfo(torch.float32).tiny)
    return per_point.repeat_interleave(bag.offsets.diff(), output_size=len(bag.values))


class _WeightedBag(torch.autograd.Function):
    """`weighted_bag` by a kernel.

    The gradient of a bag is a bag: row c collects, over the points that hold column c, their
    gradients times their values.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Any,
        weight: Tensor,
        picked: Picked,
        normalise: bool,
        sparse: bool,
        learns: bool,
    ) -> Tensor:
        bag = picked.bag
        rows = bag.offsets, bag.columns, bag.values, picked.ids
        out = torch.empty(len(picked), weight.shape[1], device=weight.device)
        ctx.table = weight
        ctx.sparse = sparse
        if learns:
            # The rows that get a gradient follow from the ids: found while the sum is computed.
            with side_stream(weight.device, "entries"):
                ctx.entries = kernels.entries(*rows, normalise, picked.most, len(weight))
            ctx.read = rows  # the side stream reads them, so they must not be freed before backward
        kernels.weighted_bag(*rows, weight, normalise, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        wait_for(ctx.table.device, "entries")
        rows, points, coefs, grouped = ctx.entries
        gradient = RowGradient(rows, grads[0].contiguous(), points, coefs, grouped)
        if ctx.sparse:
            grad_table = for_autograd(ctx.table, gradient, ctx.next_functions[0][0])
        else:
            grad_table = as_dense(ctx.table, gradient)
        return None, grad_table, None, None, None, None
