"""Rows of a table in host memory, copied to the GPU that uses them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headtail.device.host_memory import is_far
from headtail.kernels.dispatch import near_rows_kernel


class NearRows(NamedTuple):
    """Tables that a kernel reads as often as it likes, and the rows of a draw in them.

    Attributes:
        weight: `[T, d]` a label table, or copies of its rows.
        bias: `[T, 1]` of the same labels, or None.
        positive: `[p]` where the positives are in them, and
        negatives: where the negatives are.
        rows: `[T]` which rows of the label table these are; None if they are the table itself.
    """

    weight: Float[Tensor, "T d"]
    bias: Tensor | None
    positive: Int64[Tensor, " p"]
    negatives: Int64[Tensor, ...]
    rows: Int64[Tensor, " T"] | None = None

    def in_table(self, listed: Int64[Tensor, " n"] | None) -> Int64[Tensor, " n"] | None:
        """Rows of the label table instead of those of `weight`."""
        if self.rows is None or listed is None:
            return self.rows if listed is None else listed
        return self.rows[listed]


@torch.no_grad()
def near_rows(weight: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor) -> NearRows:
    """The rows in use, read from host memory once: kernels read each of them many times.

    A table that the device has in its own memory is returned as it is, and so is any table where
    each example has its own negatives: these are used by one example alone.
    """
    if not is_far(weight) or negatives.dim() != 1:
        return NearRows(weight, bias, positive, negatives)
    rows = torch.cat([positive, negatives])
    gather = near_rows_kernel(weight, rows)
    if gather is None:
        near = weight[rows]
        near_bias = None if bias is None else bias[rows]
    else:
        near, near_bias = gather(weight, bias, rows)
    place = torch.arange(len(rows), device=rows.device)
    return NearRows(near, near_bias, place[: len(positive)], place[len(positive) :], rows)
