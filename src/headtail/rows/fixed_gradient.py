"""A sparse gradient in memory that stays where it is, for CUDA graphs that write and read it."""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headtail.device.graphs import Pool, Replay, failed_captures, record
from headtail.kernels.dispatch import kernels_in_use
from headtail.rows.gradients import sparse_rows
from headtail.rows.link import link_of, linked

MOST_SIZES = 4
"""Numbers of entries for which a table keeps room."""
STEPS_BEFORE = 2
"""Times that a norm is computed eagerly first, which compiles its kernels."""
MOST_NUMBERS = 2**26
"""Numbers that a fixed gradient holds at most: 256 MiB of float32."""


class FixedGradient:
    """Room for the `.grad` of one table: parts of n entries, one for each backward pass before a
    step.

    The `.grad` of the table is an ordinary sparse tensor over the parts in use. Whoever reads,
    unscales or clips it sees the gradient; only its memory is used again by later steps.
    """

    def __init__(self, table: Tensor, entries: int) -> None:
        self.shape = table.shape
        self.entries = entries
        self._values = table.detach().new_empty(0, table.shape[1])
        self._rows = torch.empty(0, dtype=torch.int64, device=table.device)
        self._grads: list[Tensor] = []
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._norms: dict[Any, Norm] = {}
        self._enlarge()

    def add(
        self,
        table: Tensor,
        rows: Int64[Tensor, " n"],
        values: Float[Tensor, "n d"],
        scale: Float[Tensor, ""],
    ) -> bool:
        """Add scale · values to rows of the table's `.grad`; False where that is not possible,
        because `.grad` is another tensor, there are too many parts, or someone keeps a gradient of
        an earlier step.
        """
        grad = table.grad
        used = 0 if grad is None else self._parts_before(grad)
        if used is None or (used == 0 and self._is_kept(but=grad)):
            return False
        if used == len(self._grads):
            if 2 * self._values.numel() > MOST_NUMBERS:
                return False
            self._enlarge()
        to_rows, to_values = self._parts[used]
        torch.mul(values, scale, out=to_values)
        to_rows.copy_(rows)
        table.grad = self._grad(used + 1)
        return True

    def parts_in(self, grad: Tensor) -> int | None:
        """How many parts this tensor is, or None if it is anything else, or was changed."""
        for number, own in enumerate(self._grads, 1):
            if own is grad:
                return number if self._is_intact(grad, number) else None
        return None

    def norm(self, parts: int, compute: Callable[[], Tensor]) -> Tensor:
        """A number that is computed from so many parts, as a CUDA graph after a few times."""
        key = parts, self.address, failed_captures(), kernels_in_use()
        if key not in self._norms:
            self._norms = dict([*self._norms.items()][1 - MOST_SIZES :]) | {key: Norm()}
        return self._norms[key].of(compute, self._values.device)

    def fits(self, table: Tensor) -> bool:
        """Whether it is still for this table, which may have grown or moved."""
        values = self._values
        same_kind = values.dtype == table.dtype and values.device == table.device
        return same_kind and self.shape == table.shape

    @property
    def address(self) -> tuple[int, int, int]:
        """Where its entries are, and how many a part has."""
        return self._rows.data_ptr(), self._values.data_ptr(), self.entries

    @property
    def nbytes(self) -> int:
        """Memory it holds."""
        return self._values.nbytes + self._rows.nbytes

    def _parts_before(self, grad: Tensor) -> int | None:
        set_to_zero = grad.is_sparse and grad._nnz() == 0
        return 0 if set_to_zero else self.parts_in(grad)

    def _is_kept(self, but: Tensor | None) -> bool:
        """Whether anyone else holds one of its tensors, such as a `.grad` put aside."""
        for grad, count in zip(self._grads, _references(self._grads), strict=True):
            if count > IN_A_LIST and grad is not but:
                return True
        return False

    def _grad(self, parts: int) -> Tensor:
        grad = self._grads[parts - 1]
        if not self._is_intact(grad, parts):  # an addition in place has given it other entries
            grad = self._grads[parts - 1] = self._view(parts)
        return grad

    def _is_intact(self, grad: Tensor, parts: int) -> bool:
        same_size = grad._nnz() == parts * self.entries
        return same_size and grad._values().data_ptr() == self._values.data_ptr()

    def _view(self, parts: int) -> Tensor:
        used = slice(0, parts * self.entries)
        return sparse_rows(self._rows[used], self._values[used], self.shape)

    def _enlarge(self) -> None:
        """Make room for twice as many parts; those in use keep their entries."""
        parts = max(1, 2 * len(self._grads))
        values = self._values.new_empty(parts * self.entries, self.shape[1])
        rows = self._rows.new_empty(parts * self.entries)
        values[: len(self._values)] = self._values
        rows[: len(self._rows)] = self._rows
        self._values = values
        self._rows = rows
        self._parts = list(zip(rows.chunk(parts), values.chunk(parts), strict=True))
        self._grads = [self._view(number) for number in range(1, parts + 1)]


class Norm:
    """A number that is computed again and again from the same memory."""

    def __init__(self) -> None:
        self._seen = 0
        self._graph: Replay | None = None
        self._result = torch.empty(0)

    def of(self, compute: Callable[[], Tensor], device: torch.device) -> Tensor:
        """The number; it is written to again the next time."""
        self._seen += 1
        if self._graph is None:
            result = compute()
            if self._seen == STEPS_BEFORE:
                self._result = result.clone()
                self._graph = self._captured(compute, device)
            return result
        self._graph.run()
        return self._result

    def _captured(self, compute: Callable[[], Tensor], device: torch.device) -> Replay | None:
        try:
            return record(lambda: self._result.copy_(compute()), device, Pool())
        except RuntimeError:
            return None  # it stays eager


def _references(listed: list[Any]) -> list[int]:
    """How many hold each of them."""
    return [*map(getrefcount, listed)]


IN_A_LIST = _references([object()])[0]
"""That number for what is in one list and nowhere else."""


def fixed_gradient(table: Tensor, entries: int, stream: int) -> FixedGradient:
    """The fixed gradient of a table for so many entries at a time on a stream."""
    rooms = linked(table).fixed
    key = entries, stream
    room = rooms.get(key)
    if room is None or not room.fits(table):
        rooms.pop(key, None)
        while len(rooms) >= MOST_SIZES:
            rooms.pop(next(iter(rooms)))  # where it is a `.grad`, that keeps the memory
        room = rooms[key] = FixedGradient(table, entries)
    return room


def place_of(table: Tensor, grad: Tensor) -> tuple[FixedGradient, int] | None:
    """The fixed gradient of a table that this tensor is, and how many parts of it."""
    link = link_of(table)
    for room in () if link is None else link.fixed.values():
        parts = room.parts_in(grad)
        if parts is not None:
            return room, parts
    return None
