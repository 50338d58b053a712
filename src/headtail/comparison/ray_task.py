"""A cell as a task of Ray: what a worker process does, on whatever node it is."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any, TypeVar

import torch

from headtail.comparison.grid import Cell
from headtail.comparison.news import Reporter
from headtail.comparison.workers import DeviceWork
from headtail.data.points import DataSet
from headtail.device import environment
from headtail.errors import HeadtailError, Setting
from headtail.files.locks import FolderInUseError
from headtail.training.interrupts import Stopped

LOCK_SECONDS = 120.0
"""How long a file server may keep the lock of a node that is gone."""
Result = TypeVar("Result")


class NodeError(HeadtailError):
    """A node cannot do any cell."""


@dataclass(frozen=True)
class Shared:
    """What a node must find as it is on the machine that the comparison was started on.

    Attributes:
        marker: a file in the folder of the comparison, by its absolute path.
        directory: where the comparison was started; names of files may be relative to it.
        digest: of the data.
        versions: package: version.
        key: of the comparison, for what a process keeps from one cell to the next.
    """

    marker: Path
    directory: Path
    digest: str
    versions: dict[str, str]
    key: str

    def check(self, cell: Cell, versions: dict[str, str]) -> None:
        """Refuse a node with other packages, or without the folder."""
        if versions != self.versions:
            here, there = (_listed(each) for each in (self.versions, versions))
            raise NodeError(
                f"{_node()} has {there}, but the comparison was started with {here}. Install the "
                "same versions on all nodes."
            )
        lost = not cell.folder.is_absolute() and not self.directory.is_dir()
        if lost or not self.marker.exists():
            folder = self.directory if lost else self.marker.parent
            raise NodeError(
                f"{_node()} does not see `{folder}`. Choose a folder with ",
                Setting("out"),
                " that is on a file system that all nodes share.",
            )

    def directory_here(self) -> Any:
        """A block in which relative names mean what they meant at the start."""
        return chdir(self.directory) if self.directory.is_dir() else nullcontext()


@dataclass(frozen=True)
class Mailbox:
    """News of cells on their way through a queue of Ray, in the order in which they are sent.

    Lost news harm no result, so a queue that is gone is an empty one.

    Attributes:
        queue: an actor, which stores bytes and imports nothing of headtail.
    """

    queue: Any

    def put(self, item: tuple[Any, ...]) -> None:
        """Send an item, and wait until it has arrived."""
        with suppress(Exception):
            self.queue.put(pickle.dumps(item))

    def empty(self) -> bool:
        """Whether nothing has arrived."""
        try:
            return self.queue.empty()
        except Exception:
            return True

    def get(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The next item; `queue.Empty` if none comes in time."""
        try:
            return pickle.loads(self.queue.get(timeout=timeout))
        except Exception as error:
            raise Empty from error


_KEPT: dict[str, DataSet] = {}
"""The data set of the latest comparison that this process worked for."""


def perform(
    cell: Cell, work: DeviceWork, shared: Shared, source: Callable[[], Any], news: Mailbox
) -> Any:
    """Do a cell.

    Args:
        cell: the cell.
        work: what is done.
        shared: what this node must find.
        source: fetches a function that reads the data.
        news: where the calls of callbacks go.
    """
    shared.check(cell, versions())
    torch.set_num_threads(1)
    reporter = Reporter(cell.title, news)
    with shared.directory_here(), cancelled() as stop:
        try:
            data = _data(shared, source)
            return _once_free(lambda: work(cell, data, reporter, stop), stop)
        finally:
            reporter.over()


def versions() -> dict[str, str]:
    """The packages that decide the results, which are the same on all nodes."""
    found = environment.versions()
    return {name: found[name] for name in ("headtail", "torch") if name in found}


@contextmanager
def cancelled() -> Iterator[threading.Event]:
    """An event that is set when Ray cancels the task, which is a simulated Ctrl-C: the cell then
    saves and stops.
    """
    flag = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: flag.set())
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)


def _data(shared: Shared, source: Callable[[], Any]) -> DataSet:
    """The data set, read once per process."""
    if shared.key not in _KEPT:
        _KEPT.clear()
        try:
            data = source()()
        except HeadtailError as error:
            raise NodeError(f"{_node()} cannot read the data: ", error.sentence) from error
        if data.digest != shared.digest:
            raise NodeError(
                f"{_node()} finds other data at the same place. Put the data on a file system "
                "that all nodes share."
            )
        _KEPT[shared.key] = data
    return _KEPT[shared.key]


def _once_free(work: Callable[[], Result], stop: threading.Event) -> Result:
    """Do the work, once the folder is free: a process that was lost may leave it locked for a
    while. A cell that is cancelled waits no longer.
    """
    begun = time.monotonic()
    while True:
        try:
            return work()
        except FolderInUseError:
            if time.monotonic() - begun > LOCK_SECONDS:
                raise
            # Not `stop.wait`: a signal sets it in this very thread, which may hold its lock then.
            time.sleep(1.0)
        if stop.is_set():
            raise Stopped


def _node() -> str:
    return f"`{socket.gethostname()}`, a node of Ray's cluster,"


def _listed(found: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in found.items())


def settings() -> dict[str, str]:
    """The environment variables of headtail: processes of another cluster do not inherit them."""
    return {name: value for name, value in os.environ.items() if name.startswith("HEADTAIL_")}
