"""Engines: how the cells of a grid are done, in processes of this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch

from headtail.comparison.grid import Cell
from headtail.comparison.workers import (
    DeviceWork,
    Follow,
    Outcome,
    in_turn,
    pays,
    side_by_side,
    source_of,
)
from headtail.data.points import DataSet
from headtail.device.shared_gpu import shared_gpu
from headtail.errors import check_choice

EngineName = Literal["processes", "ray"]
Note = Callable[[str], None]
"""Called with a sentence that a user should know."""


@runtime_checkable
class Engine(Protocol):
    """Does cells. It may be asked several times, for cells of one data set, and is then closed."""

    def run(
        self, cells: Sequence[Cell], data: DataSet, work: DeviceWork, follow: Follow
    ) -> Generator[Outcome, None, None]:
        """Do the cells, and give back the outcome of each as soon as it is ready.

        Ctrl-C lets cells under way save and stop, and so does closing the generator.
        """
        ...

    def close(self) -> None:
        """Give back what was started."""
        ...


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist, or whose package or cluster is missing."""
    check_choice("engine", name, get_args(EngineName))
    if name == "ray":
        from headtail.comparison.ray_cluster import check_ray

        check_ray()


def engine_of(name: EngineName, workers: int | None, note: Note, *, if_it_pays: bool) -> Engine:
    """The engine of this name.

    Args:
        name: "processes" or "ray".
        workers: cells at the same time.
        note: called with anything a user should know.
        if_it_pays: start processes only for more work than their start takes, on a CPU.
    """
    if name == "ray":
        from headtail.comparison.ray_engine import RayEngine

        return RayEngine(workers, note)
    return Processes(workers or 1, note, if_it_pays)


@dataclass(frozen=True)
class Processes:
    """Cells in turn in this process, or in several processes of this machine.

    Attributes:
        workers: cells at the same time; they share torch's threads evenly.
        note: called with anything a user should know.
        if_it_pays: start processes only for more work than their start takes, on a CPU.
    """

    workers: int
    note: Note
    if_it_pays: bool

    def run(
        self, cells: Sequence[Cell], data: DataSet, work: DeviceWork, follow: Follow
    ) -> Generator[Outcome, None, None]:
        """Do the cells; those that are measured on the models of others, always in turn."""
        to_train = [cell for cell in cells if cell.adjusts is None and not cell.done]
        # The number of threads decides the last digits of a sum: it must not depend on how many
        # cells are left to do.
        threads = max(1, torch.get_num_threads() // self.workers)
        small = self.if_it_pays and work.device == "cpu" and not pays(to_train, data)
        if self.workers == 1 or len(to_train) < 2 or small:
            yield from in_turn(cells, data, work, follow, threads=threads)
            return
        workers = min(self.workers, len(to_train))
        with shared_gpu(self.note) if work.device == "cuda" else nullcontext():
            yield from side_by_side(
                cells, source_of(data), work, follow, workers=workers, threads=threads
            )

    def close(self) -> None:
        """Nothing is left running."""
