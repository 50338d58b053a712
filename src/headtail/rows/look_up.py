"""Rows of a table by their ids, with gradients as entries of rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.kernels.gradient import RowGradient
from headtail.rows.decay import catch_up
from headtail.rows.gradients import for_autograd
from headtail.rows.link import taker_of


def look_up(
    table: Float[Tensor, "T d"], ids: Int[Tensor, ...], *, sparse: bool
) -> Float[Tensor, "... d"]:
    """The rows of these ids, with their weight decay.

    Args:
        table: a parameter.
        ids: of any shape.
        sparse: give the table a row-sparse gradient; an optimiser that takes entries gets them
            without a sparse tensor in between.
    """
    ids = ids.long()
    catch_up(table, ids.reshape(-1))
    if sparse and table.is_leaf and taker_of(table) is not None:
        return _LookUp.apply(table, ids)  # pyright: ignore[reportReturnType]
    return F.embedding(ids, table, sparse=sparse)


class _LookUp(torch.autograd.Function):
    """`F.embedding` whose gradient goes to the optimiser as entries."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.table = table
        ctx.save_for_backward(ids)
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        values = grads[0].reshape(-1, ctx.table.shape[1]).contiguous()
        gradient = RowGradient(ids.reshape(-1), values)
        return for_autograd(ctx.table, gradient, ctx.next_functions[0][0]), None
