"""A number for each label, looked up on whatever device the ids are."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from headtail.errors import check_ids


@dataclass(frozen=True, eq=False)
class Table:
    """`[L]` values whose look-ups follow the ids: the table is copied to each device once.

    >>> Table(torch.tensor([5, 7]))[torch.tensor([1, 1])]
    tensor([7, 7])
    """

    values: Tensor
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    def __getitem__(self, ids: Tensor) -> Tensor:
        check_ids("ids", ids, None)
        values = self.values
        if values.device != ids.device:
            values = self._copies.get(ids.device)
            if values is None:
                values = self._copies[ids.device] = self.values.to(ids.device)
        try:
            return values.index_select(0, ids.reshape(-1).long()).reshape(ids.shape)
        except (IndexError, RuntimeError):
            check_ids("ids", ids, len(values))  # looked at only where something is wrong
            raise


def constant(
    value: float, ids: Int[Tensor, ...], dtype: torch.dtype = torch.float64
) -> Shaped[Tensor, ...]:
    """The same number for each of `ids`, held in memory once a device: nothing is computed.

    >>> constant(0.5, torch.tensor([3, 1]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    if torch.compiler.is_compiling():
        return torch.full_like(ids, value, dtype=dtype)
    return _scalar(value, dtype, ids.device).expand(ids.shape)


def less(minuend: Tensor, *others: Tensor) -> Tensor:
    """`minuend` less all others; where every one is a `constant`, nothing is computed on the
    device.

    >>> ids = torch.tensor([3, 1])
    >>> less(constant(0.5, ids), constant(0.25, ids))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    values = (
        []
        if torch.compiler.is_compiling()
        else [_VALUES.get(one.data_ptr()) for one in (minuend, *others)]
    )
    if not values or None in values:
        for other in others:
            minuend = minuend - other
        return minuend
    return constant(values[0] - sum(values[1:]), minuend, minuend.dtype)  # pyright: ignore


_VALUES: dict[int, float] = {}
"""What stands at the addresses of constants, which live as long as the process."""


@cache
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it will serve in training too
        scalar = torch.full((), value, dtype=dtype, device=device)
    _VALUES[scalar.data_ptr()] = value
    return scalar
