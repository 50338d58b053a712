"""Computing with tables of few digits, and writing to them."""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float, Float32
from torch import Tensor


def widened(values: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """At least in float32, for computing."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def write_rows(table: Tensor, rows: object, values: Tensor) -> None:
    """`table[rows] = values`. A bfloat16 table is rounded up or down at random, because small steps
    would be lost otherwise.
    """
    if table.dtype == torch.bfloat16:
        values = stochastic_round(values)
    table[rows] = values.to(table.dtype)  # pyright: ignore[reportArgumentType]


def stochastic_round(values: Float32[Tensor, ...]) -> BFloat16[Tensor, ...]:
    """To one of the two neighbours in bfloat16, so that the mean is the number itself.

    >>> stochastic_round(torch.tensor([1.0, -2.5, torch.inf]))
    tensor([ 1.0000, -2.5000,     inf], dtype=torch.bfloat16)
    """
    bits = values.view(torch.int32)
    noise = torch.randint_like(bits, 2**16)  # bfloat16 is the upper half of float32's digits
    rounded = ((bits + noise) & -(2**16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)
