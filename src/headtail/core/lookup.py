"""A number for each label, looked up on whatever device the ids are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64, Int, Shaped
from torch import Tensor

from headtail.errors import check_ids


@dataclass(frozen=True, eq=False)
class Table:
    """`[L]` values, looked up on the device of the ids: the table is copied to each device once.

    >>> Table(torch.tensor([5, 7]))[torch.tensor([1, 1])]
    tensor([7, 7])
    """

    values: Tensor
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> Any:
        """For pickle and deepcopy: copies on devices are made again where they are needed."""
        return Table, (self.values,)

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


@dataclass(frozen=True, eq=False)
class Same:
    """The same number for each of `ids`, held once.

    >>> Same(0.5, torch.tensor([3, 1])).tensor()
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    value: float
    ids: Int[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        """That of the ids."""
        return self.ids.shape

    def tensor(self) -> Float64[Tensor, ...]:
        """Written out: a new tensor for each caller, who may change it."""
        return constant(self.value, self.ids)


def constant(
    value: float, ids: Int[Tensor, ...], dtype: torch.dtype = torch.float64
) -> Shaped[Tensor, ...]:
    """A new tensor that holds the same number for each of `ids`.

    >>> constant(0.5, torch.tensor([3, 1]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return torch.full_like(ids, value, dtype=dtype)


def written_out(values: Tensor | float, ids: Int[Tensor, ...]) -> Tensor:
    """A tensor with a number for each of `ids`, from one or from the number that all share.

    >>> written_out(0.5, torch.tensor([3, 1]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return values if isinstance(values, Tensor) else constant(values, ids)
