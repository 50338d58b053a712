"""Weight decay that reaches a row when it is next read: lazy, but exact."""

from __future__ import annotations

import math
from types import EllipsisType
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headtail.rows.rounding import widened, write_rows

Rows: TypeAlias = Tensor | EllipsisType
"""Row ids, or `...` for all of them."""


class _Pending:
    """Weight decay that rows of one table have yet to receive: row i is due the factor e^(log_decay
    − received_i).
    """

    def __init__(self, table: Tensor) -> None:
        self.log_decay = 0.0
        self.settled = 0.0  # the log_decay up to which every row has received it all
        self.received = torch.zeros(len(table), dtype=torch.float64, device=table.device)

    def add(self, log_factor: float) -> None:
        self.log_decay += log_factor

    def apply(self, table: Tensor, rows: Rows) -> None:
        if self.settled == self.log_decay and len(self.received) == len(table):
            return
        self.fit(table)
        factor = (self.log_decay - self.received[rows]).exp().reshape(-1, *[1] * (table.dim() - 1))
        old = widened(table[rows])  # a bfloat16 factor would lose most of a small decay
        write_rows(table, rows, old * factor.to(old.dtype))
        if rows is ...:
            self.settled = self.log_decay
        self.received[rows] = self.log_decay

    def forgive(self) -> None:
        """The table has new values, which owe nothing."""
        self.received.fill_(self.log_decay)
        self.settled = self.log_decay

    def fit(self, table: Tensor) -> None:
        if self.received.device != table.device:
            self.received = self.received.to(table.device)
        if len(self.received) < len(table):  # rows that the table has gained have missed nothing
            new = self.received.new_full((len(table) - len(self.received),), self.log_decay)
            self.received = torch.cat([self.received, new])


# Held beside the table and not in the optimiser: what is owed outlives the optimiser that owes it.
_PENDING: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@torch.no_grad()
def catch_up(table: Tensor, rows: Rows = ...) -> None:
    """Apply the weight decay that these rows of a table have been spared so far; nothing where none
    is pending.
    """
    if table in _PENDING:
        _PENDING[table].apply(table, rows)


@torch.no_grad()
def forgive(table: Tensor) -> None:
    """Forget pending weight decay, because the table was given new values."""
    if table in _PENDING:
        _PENDING[table].forgive()


def owed(table: Tensor) -> tuple[Tensor, float] | None:
    """Lazy weight decay as `[L]` log-factors that rows have received and the sum they should have,
    or None where there is none.
    """
    pending = _PENDING.get(table)
    return None if pending is None else (pending.received, pending.log_decay)


def owe(table: Tensor, log_factor: float) -> None:
    """Multiply all rows by e^log_factor, each when it is next read."""
    if table not in _PENDING:
        _PENDING[table] = _Pending(table)
    _PENDING[table].add(log_factor)


def owes(table: Tensor, received: Tensor, log_decay: float) -> None:
    """Take over what `owed` told, for instance from a checkpoint."""
    pending = _PENDING[table] = _Pending(table)
    pending.received = received.to(table.device)
    pending.log_decay = log_decay
    pending.settled = math.nan
