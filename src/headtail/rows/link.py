"""What a table shares with the optimisers that change it and the modules that read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import EllipsisType
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.device.host_memory import HostTensor
from headtail.device.parts import parts
from headtail.kernels.gradient import RowCounters, RowGradient
from headtail.rows.rounding import widened, write_rows

Rows: TypeAlias = Tensor | EllipsisType
"""Row ids, or `...` for all of them."""
NAME = "headtail_link"
"""The attribute of a parameter that holds its link."""


class PendingDecay:
    """Weight decay that rows of one table have yet to receive.

    Row i is due the factor e^(log_decay − received_i). Both numbers are tensors on the table's
    device: a compiled step sees them change.
    """

    def __init__(self, table: Tensor) -> None:
        self.log_decay = torch.zeros((), dtype=torch.float64, device=table.device)
        self.received = torch.zeros(len(table), dtype=torch.float64, device=table.device)
        self.settled = True  # whether every row has received all of it
        # Whether a CUDA graph adds to it, which the host does not notice.
        self.replayed = False

    def add(self, table: Tensor, log_factor: float | Tensor) -> None:
        """Every row is due another factor."""
        self._fit(table)
        self.log_decay += log_factor
        self.settled = False
        if table.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.replayed = True

    def apply(self, table: Tensor, rows: Rows) -> None:
        """Give these rows what they are due."""
        if self.settled and not self.replayed and len(self.received) == len(table):
            return
        self._fit(table)
        for part in parts(table) if rows is ... else (rows,):
            factor = (self.log_decay - self.received[part]).exp()
            factor = factor.reshape(-1, *[1] * (table.dim() - 1))
            old = widened(table[part])  # a bfloat16 factor would lose most of a small decay
            write_rows(table, part, old * factor.to(old.dtype))
        # A compiled step would take the sum that starts again for the one it began with.
        if rows is ... and torch.compiler.is_compiling():
            self.received[rows] = self.log_decay
            self.settled = True
        elif rows is ...:
            self.forgive()
        else:
            self.received[rows] = self.log_decay

    @property
    def address(self) -> tuple[int, int]:
        """Where its numbers are."""
        return self.received.data_ptr(), self.log_decay.data_ptr()

    def forgive(self) -> None:
        """No row is due anything, because all have received it or the table has new values.

        The sum starts again, in place, since graphs refer to it: later factors are then those of a
        table that was loaded from a checkpoint, to the last digit.
        """
        self.received.zero_()
        self.log_decay.zero_()
        self.settled = True

    def _fit(self, table: Tensor) -> None:
        if self.received.device != table.device:
            self.received = self.received.to(table.device)
            self.log_decay = self.log_decay.to(table.device)
        if len(self.received) < len(table):  # rows that the table has gained have missed nothing
            new = self.log_decay.expand(len(table) - len(self.received))
            self.received = torch.cat([self.received, new])


class Taker(ABC):
    """An optimiser that takes gradients as entries of rows.

    Attributes:
        at_once: whether it changes a table as soon as it is given entries, not in its next step.
    """

    at_once = False

    @abstractmethod
    def take(self, table: Tensor, gradient: RowGradient) -> None:
        """Change a table at once."""


class TableLink:
    """What a table shares with others: an attribute of the parameter, which moves with it.

    A copy of a parameter has none: a head applies pending decay before it is copied or saved.

    Attributes:
        decay: what rows are still due. It is kept here to outlive the optimiser that added it.
        entries: the part of the gradient that is not in `.grad`, in the order of computation.
        counters: scratch memory of kernels that group entries by row.
        fixed: room for gradients at fixed places, by their number of entries and stream.
        ranks: who hold the rows, each its own; None for a table that is whole.
    """

    def __init__(self) -> None:
        self.decay: PendingDecay | None = None
        self.entries: list[RowGradient] = []
        self.counters = RowCounters()
        self.fixed: dict[tuple[int, int], Any] = {}
        self.ranks: Ranks | None = None
        self._taker: ref[Taker] | None = None
        self._backward = -1

    @property
    def taker(self) -> Taker | None:
        """The optimiser that takes entries of this table, as long as it lives."""
        return None if self._taker is None else self._taker()

    @taker.setter
    def taker(self, taker: Taker | None) -> None:
        self._taker = None if taker is None else ref(taker)

    @property
    def at_once(self) -> bool:
        """Whether an optimiser changes this table as soon as it gets a gradient."""
        if self._taker is None:
            return False
        taker = self._taker()
        return taker is not None and taker.at_once

    def hold(self, table: Tensor, gradient: RowGradient) -> None:
        """Keep entries until the next step; called during backward."""
        backward = torch._C._current_graph_task_id()
        if table.grad is None and backward != self._backward:
            self.entries = []  # of an earlier pass: `.grad` was set to None since
        self._backward = backward
        self.entries.append(gradient)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, which saves attributes of parameters too: only decay that is still due."""
        settled = self.decay is None or self.decay.settled
        return {**vars(TableLink()), "decay": None if settled else self.decay}


def link_of(table: Tensor) -> TableLink | None:
    """The link of a table, or None where nothing has ever been shared."""
    return getattr(table, NAME, None)


def taker_of(table: Tensor) -> Taker | None:
    """The optimiser that takes entries of this table, if there is one."""
    link = link_of(table)
    return None if link is None else link.taker


def ranks_of(table: Tensor) -> Ranks | None:
    """The ranks that hold this table's rows, each its own; None for a table that is whole."""
    link = link_of(table)
    return None if link is None else link.ranks


def forget_entries(table: Tensor) -> None:
    """Drop the part of a gradient that is not in `.grad`."""
    link = link_of(table)
    if link is not None:
        link.entries = []


def linked(table: Tensor) -> TableLink:
    """The link of a table, made where there is none."""
    link = link_of(table)
    if link is None:
        link = TableLink()
        setattr(table, NAME, link)
    return link


def twin(table: Tensor) -> Tensor:
    """A leaf that autograd takes for another one, in the same memory and with the same link."""
    if isinstance(table, HostTensor):
        other = table.alias()
    else:
        other = table.detach().requires_grad_(table.requires_grad)
    link = link_of(table)
    if link is not None:
        setattr(other, NAME, link)
    return other


# A parameter that is saved by itself takes its link along, and `torch.load` refuses unknown
# classes.
torch.serialization.add_safe_globals([PendingDecay, RowCounters, TableLink])
