"""Cells as tasks of Ray, on one machine or on many."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch

from headtail.comparison.grid import Cell
from headtail.comparison.news import Followers
from headtail.comparison.ray_cluster import cluster, gpus_per_task, is_own, ray_package
from headtail.comparison.ray_task import (
    Mailbox,
    NodeError,
    Shared,
    perform,
    settings,
    versions,
)
from headtail.comparison.workers import DeviceWork, Follow, Outcome, in_turn, source_of
from headtail.data.points import DataSet
from headtail.errors import HeadtailError, Setting
from headtail.files.atomic import delete, write_text
from headtail.files.leftovers import temporary_name
from headtail.training.interrupts import Stopped, interrupts

RETRIES = 3
"""How often a cell is begun again after its process or its node was lost."""
SAVE_SECONDS = 30.0
"""How long cells may take to save and stop."""


@dataclass(frozen=True)
class Begun:
    """A cluster at work for one comparison.

    Attributes:
        ray: the package, connected.
        task: `perform` as a remote function.
        shared: what every node must find.
        source: a reference to the function that reads the data, in Ray's store.
        news: where callbacks are called from.
    """

    ray: ModuleType
    task: Any
    shared: Shared
    source: Any
    news: Mailbox


@final
class RayEngine:
    """Cells as tasks of Ray, each with one core, one thread, and a GPU or a share of one.

    A cell whose process or node is lost is begun again from its last checkpoint. Ctrl-C cancels
    the tasks, which save first.

    Args:
        workers: cells at the same time; None: as many as the cluster takes.
        note: called with anything a user should know.
    """

    def __init__(self, workers: int | None, note: Callable[[str], None]) -> None:
        self.workers = workers
        self.note = note
        self._begun: Begun | None = None
        self._resources = ExitStack()

    def run(
        self, cells: Sequence[Cell], data: DataSet, work: DeviceWork, follow: Follow
    ) -> Generator[Outcome, None, None]:
        """Do the cells; where all are done, and only read or measured, in this process."""
        if self._begun is None and all(cell.done for cell in cells):
            yield from in_turn(cells, data, work, follow, threads=1)
            return
        begun = self._begun = self._begun or self._begin(cells, data, work.device)
        followers = Followers({cell.title: follow(cell) for cell in cells}, begun.news)
        with closing(self._as_tasks(begun, cells, work, followers)) as outcomes:
            yield from outcomes

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._resources.close()
        self._begun = None

    def _begin(self, cells: Sequence[Cell], data: DataSet, device: str) -> Begun:
        options: dict[str, Any] = {}
        if not is_own() and (variables := settings()):
            options["runtime_env"] = {"env_vars": variables}
        ray = self._resources.enter_context(cluster(self.workers, device, self.note))
        options["num_gpus"] = gpus_per_task(ray, self.workers, device)
        # A comparison's folder, in which its cells lie two levels down, is swept at each start.
        marker = self._resources.enter_context(_marked(cells[0].folder.parents[1].absolute()))
        task = ray.remote(perform).options(
            num_cpus=1,
            max_retries=RETRIES,
            retry_exceptions=[torch.AcceleratorError],
            **options,
        )
        shared = Shared(marker, Path.cwd(), data.digest, versions(), secrets.token_hex(8))
        return Begun(ray, task, shared, ray.put(source_of(data)), Mailbox(_queue(ray)))

    def _as_tasks(
        self, begun: Begun, cells: Sequence[Cell], work: DeviceWork, followers: Followers
    ) -> Generator[Outcome, None, None]:
        ray = begun.ray
        # In a function, the reference is not followed before the data are needed.
        source = partial(ray.get, begun.source)
        left = deque(cells)
        waiting: dict[Any, Cell] = {}
        with interrupts() as interrupted:
            try:
                while (left or waiting) and not interrupted.is_set():
                    while left and len(waiting) < (self.workers or len(cells)):
                        cell = left.popleft()
                        task = begun.task.remote(cell, work, begun.shared, source, begun.news)
                        waiting[task] = cell
                    ready, _ = ray.wait(list(waiting), timeout=0.2)
                    followers.pass_on()
                    for task in ready:
                        outcome = _outcome(ray, waiting.pop(task), task)
                        if not isinstance(outcome.error, _LostError | NodeError):
                            followers.wait_for(outcome.cell.title)
                        if isinstance(outcome.error, NodeError):
                            raise outcome.error
                        yield outcome
            finally:
                _cancel(ray, list(waiting))
                followers.end()
            if interrupted.is_set():
                raise Stopped


class _LostError(HeadtailError):
    """A cell that Ray has given up."""


def _outcome(ray: ModuleType, cell: Cell, task: Any) -> Outcome:
    """What a task returned or raised."""
    errors = ray.exceptions
    try:
        return Outcome(cell, ray.get(task), None)
    except errors.RayTaskError as error:
        if isinstance(error.cause, Exception):
            error.cause.__cause__ = error  # its text shows where the worker was
            return Outcome(cell, None, error.cause)
        return Outcome(cell, None, _given_up(error))
    except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
        lost = _LostError(
            f"Its worker process died {RETRIES + 1} times, probably because it ran out of memory. "
            "Start the comparison again with fewer ",
            Setting("workers"),
            ".",
        )
        lost.__cause__ = error
        return Outcome(cell, None, lost)
    except errors.RayError as error:
        return Outcome(cell, None, _given_up(error))


def _given_up(error: Exception) -> _LostError:
    why = str(error).strip().partition("\n")[0].rstrip(".")
    lost = _LostError(f"Ray could not run it ({why or type(error).__name__}).")
    lost.__cause__ = error
    return lost


def _cancel(ray: ModuleType, tasks: Sequence[Any]) -> None:
    """Let tasks save and stop; those that take too long are stopped at once."""
    if not tasks:
        return
    for task in tasks:
        ray.cancel(task)
    _, late = ray.wait(tasks, num_returns=len(tasks), timeout=SAVE_SECONDS)
    for task in late:
        ray.cancel(task, force=True)


def _queue(ray: ModuleType) -> Any:
    """A queue beside this process, so that no other node takes it along."""
    strategies = ray_package("ray.util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()
    where = strategies.NodeAffinitySchedulingStrategy(here, soft=True)
    options = {"num_cpus": 0, "scheduling_strategy": where}
    return ray_package("ray.util.queue").Queue(actor_options=options)


@contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """A file that nodes must see in this folder, while the block lasts."""
    path = temporary_name(folder / "ray")
    write_text(path, "")
    try:
        yield path
    finally:
        delete(path)
