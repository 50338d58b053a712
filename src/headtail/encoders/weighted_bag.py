"""The weighted bag: sparse features times a table."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.data.points import Bag, Picked
from headtail.device.side_streams import beside, wait_for
from headtail.errors import HeadtailError
from headtail.kernels.compiled import HAS_TRITON
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
    check_columns(bag.bag if isinstance(bag, Picked) else bag, weight)
    kernels = bag_kernels(weight) if sparse or weight.device.type == "cuda" else None
    if kernels is not None:
        picked = (
            bag
            if isinstance(bag, Picked)
            else Picked(bag, torch.arange(len(bag), device=weight.device), len(bag.columns))
        )
        learns = weight.requires_grad and torch.is_grad_enabled()
        return _WeightedBag.apply(kernels, weight, picked, normalise, sparse, learns)  # pyright: ignore[reportReturnType]
    return plain_weighted_bag(bag, weight, normalise=normalise, sparse=sparse)


def check_columns(bag: Bag, weight: Tensor) -> None:
    """Refuse a table of another size, beyond which a kernel would read."""
    if bag.num_columns != len(weight):
        raise HeadtailError(
            f"The features have {bag.num_columns:,} columns, but the table {len(weight):,} rows. "
            "Give one row a column."
        )


def plain_weighted_bag(
    bag: Bag | Picked,
    weight: Float[Tensor, "D d"],
    *,
    normalise: bool = False,
    sparse: bool = False,
) -> Float[Tensor, "n d"]:
    """The same by torch alone."""
    bag = bag.gathered() if isinstance(bag, Picked) else bag
    values = bag.values.to(weight.dtype)
    if normalise:
        per_point = lengths(bag).clamp(min=torch.finfo(torch.float32).tiny)
        values = values / per_point.repeat_interleave(
            bag.offsets.diff(), output_size=len(values)
        ).to(weight.dtype)
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


class _WeightedBag(torch.autograd.Function):
    """`weighted_bag` by a kernel. The gradient of a bag is a bag: row c collects, over the points
    that hold column c, their gradients times their values.
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
            # where the gradient goes follows from the ids, and is found meanwhile
            with beside(weight.device, "entries"):
                ctx.entries = kernels.entries(*rows, normalise, picked.most, len(weight))
            ctx.read = rows  # and must not be given back before that is over
        kernels.weighted_bag(*rows, weight, normalise, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        wait_for(ctx.table.device, "entries")
        rows, points, coefs, grouped = ctx.entries
        gradient = RowGradient(rows, grads[0].contiguous(), points, coefs, grouped)
        node = ctx.next_functions[0][0]
        of_table = (
            for_autograd(ctx.table, gradient, node) if ctx.sparse else as_dense(ctx.table, gradient)
        )
        return None, of_table, None, None, None, None


def bag_kernels(weight: Tensor) -> Any:
    """The module whose kernels take this table, or None."""
    kernels = None
    if not weight.is_contiguous():
        return None
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        from headtail.kernels.cpu import bag as kernels
    elif (
        weight.device.type == "cuda"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and HAS_TRITON
    ):
        from headtail.kernels.triton import bag as kernels
    return kernels
