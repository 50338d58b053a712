"""A number for each label, looked up on whatever device the ids are."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
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
