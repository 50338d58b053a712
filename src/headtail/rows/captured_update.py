"""The row update of an optimiser as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headtail.device.graphs import Pool, Record, Replay, failed_captures, record, stream_of
from headtail.kernels.dispatch import kernels_in_use
from headtail.kernels.gradient import RowGradient
from headtail.rows.fixed_gradient import place_of
from headtail.rows.gradients import as_rows
from headtail.rows.link import link_of

STEPS_BEFORE = 2
"""Equal updates that run eagerly first: they make the state, and compile kernels."""
PLACE = 3
"""Where the place of the gradient is in an update's key."""
NOT_OPTIONS = ("params", "lr")
"""Entries of a group that say nothing about how tables are changed."""
MOST_UPDATES = 16
"""Graphs that are kept: each belongs to a table and to a number of backward passes per step."""


class Update(NamedTuple):
    """What an update does, apart from the learning rate.

    Attributes:
        change: makes it, given the table, entries of rows, and the options of its group.
        table: what it changes.
        gradient: its `.grad`, in memory that stays where it is.
        group: the options.
        state: the optimiser's tensors for this table.
    """

    change: Callable[[Tensor, RowGradient, dict[str, Any]], object]
    table: Tensor
    gradient: Tensor
    group: dict[str, Any]
    state: dict[str, Any]

    def place(self) -> tuple[Any, ...] | None:
        """Where its gradient is, if that stays there."""
        found = place_of(self.table, self.gradient)
        if found is None:
            return None
        room, parts = found
        return parts, *room.address

    def key(self, place: tuple[Any, ...], rate: Tensor) -> tuple[Any, ...]:
        """Everything that a graph holds on to."""
        table = self.table
        link = link_of(table)
        return (
            table.data_ptr(),
            table.shape,
            table.dtype,
            place,
            rate.data_ptr(),
            _hashable([self.group[name] for name in self.group if name not in NOT_OPTIONS]),
            *[value.data_ptr() for value in self.state.values() if isinstance(value, Tensor)],
            None if link is None or link.decay is None else link.decay.address,
            stream_of(table.device),
            failed_captures(),
            torch._C._get_deterministic_algorithms(),
            kernels_in_use(),
        )


class CapturedUpdates:
    """Updates of tables whose gradients stay at one place, each replayed as one CUDA graph."""

    def __init__(self, record: Record = record, devices: tuple[str, ...] = ("cuda",)) -> None:
        self.record = record
        self.devices = devices
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, Replay] = {}
        self._rates: dict[Any, tuple[Tensor, float]] = {}
        self._pools: dict[int, Pool] = {}
        self._refused = False

    def serves(self, table: Tensor) -> bool:
        """Whether updates of this table may be replayed."""
        return not self._refused and table.device.type in self.devices

    def replay(self, update: Update) -> bool:
        """Make an update by a graph; False where it has to run eagerly."""
        place = None if torch.compiler.is_compiling() else update.place()
        if place is None:
            return False
        rate = self._rate(update)
        key = update.key(place, rate)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._captured(key, update, rate)
            if graph is None:
                return False
        graph.run()
        link = link_of(update.table)
        if update.group["weight_decay"] and link is not None and link.decay is not None:
            link.decay.settled = False
        return True

    @property
    def nbytes(self) -> int:
        """Memory that graphs hold."""
        return sum(graph.nbytes for graph in self._graphs.values())

    def _captured(self, key: Any, update: Update, rate: Tensor) -> Replay | None:
        if len(self._seen) > MOST_UPDATES:
            same_place = {seen[PLACE] for seen in self._seen} == {key[PLACE]}
            self._seen.clear()
            if same_place and not self._graphs:
                self._refuse("its options change from step to step")
                return None
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= STEPS_BEFORE:
            return None
        device = update.table.device
        pool = self._pools.setdefault(stream_of(device), Pool())
        group = {**update.group, "lr": rate}
        try:
            rows = as_rows(update.gradient)
            assert rows is not None
            # Without `update`, which holds the gradient: see `FixedGradient.add`.
            work = partial(update.change, update.table, rows, group)
            known = set(update.state)
            graph = self.record(work, device, pool)
            if new := update.state.keys() - known:
                # Made inside the graph, which would make it again in every replay.
                for name in new:
                    del update.state[name]
                return None
            link = link_of(update.table)
            if link is not None and link.decay is not None:
                link.decay.replayed = False  # `replay` tells it
        except RuntimeError as error:
            self._refuse(str(error))
            return None
        while len(self._graphs) >= MOST_UPDATES:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[key] = graph
        return graph

    def _refuse(self, reason: str) -> None:
        self._refused = True
        warnings.warn(
            f"The update of a table cannot be captured as a CUDA graph ({reason}), so it runs "
            "eagerly.",
            stacklevel=2,
        )

    def _rate(self, update: Update) -> Tensor:
        """The learning rate as a tensor on the device, which a graph sees change."""
        lr = update.group["lr"]
        if _on_device(lr):
            return lr
        value = float(lr)
        device = update.table.device
        place = id(update.group), device
        if place not in self._rates:
            rate = torch.full((), value, dtype=torch.float64, device=device)
            self._rates[place] = rate, value
        rate, now = self._rates[place]
        if now != value:
            rate.fill_(value)
            self._rates[place] = rate, value
        return rate


def _hashable(options: list[Any]) -> Hashable:
    """Options of a group as a part of a key: lists, for example of betas, as text."""
    key = tuple(options)
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _on_device(lr: float | Tensor) -> bool:
    return isinstance(lr, Tensor) and lr.device.type == "cuda"
