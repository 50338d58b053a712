"""Cells of a grid, in turn or in several processes: with small steps, a process per thread is
faster than many threads for one run.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from headtail.comparison.grid import Cell
from headtail.comparison.news import Followers, Reporter
from headtail.comparison.rows import negatives_of
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.data.processes import leave_with_parent, sigint_blocked
from headtail.data.reading import Reading
from headtail.errors import HeadtailError, Setting
from headtail.training.callbacks import Callback
from headtail.training.interrupts import Stopped, interrupts

START_SECONDS = 10.0
"""Work below which processes cost more than they save: each imports torch and loads kernels."""
STEP_SECONDS = 2e-3
"""A step of a small model on one core, but for the scores of its labels."""
OPERATIONS_PER_SECOND = 2e10
ReadData = Callable[[], DataSet]
"""Gives the data set, in whatever process it is called."""
Work = Callable[[Cell, DataSet, Callback, Any], Any]
"""Does a cell, given what follows it and an event that asks it to stop."""
Follow = Callable[[Cell], Callback]
"""What follows a cell."""


@runtime_checkable
class DeviceWork(Protocol):
    """Work on cells that is done on one device."""

    @property
    def device(self) -> str:
        """Where: "cpu" or "cuda"."""
        ...

    def __call__(self, cell: Cell, data: DataSet, callback: Callback, stop: Any) -> Any:
        """Do a cell."""
        ...


class Outcome(NamedTuple):
    """The result of a cell: what its work returned, or what it raised."""

    cell: Cell
    result: Any
    error: BaseException | None


def source_of(data: DataSet) -> ReadData:
    """Gives this data set to other processes.

    What `load` read is read again there, which maps the same cached files into memory. Other data
    sets are sent to each process.
    """
    if not data.read_as:
        return partial(_itself, data)
    options = dict(data.read_as)
    path = options.pop("path")
    options.pop("content", None)
    for name in ("test", "root", "item_features"):
        options[name] = None if options[name] is None else Path(options[name])
    options["features"] = tuple(options["features"] or ())
    return partial(load, path, Reading(**options))


def _itself(data: DataSet) -> DataSet:
    return data


def pays(cells: Sequence[Cell], data: DataSet) -> bool:
    """Whether training these cells on a CPU takes long enough for processes to be worth their
    start, by the number and size of their steps.
    """
    if data.train.image_size is not None:  # a network's steps are long
        return True
    seconds = 0.0
    for run in (cell.run for cell in cells):
        pairs = data.train.num_pairs * run.epochs
        labels = negatives_of(run) or data.train.num_labels
        # a multiplication and an addition per score, forward and twice backward
        seconds += pairs / run.batch * STEP_SECONDS
        seconds += 6 * pairs * labels * run.dim / OPERATIONS_PER_SECOND
    return seconds >= START_SECONDS


def in_turn(
    cells: Sequence[Cell],
    data: DataSet,
    work: Work,
    follow: Follow,
    *,
    threads: int,
) -> Generator[Outcome, None, None]:
    """One cell after the other, in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for cell in cells:
            callback = follow(cell)  # not a fault of the cell
            try:
                outcome = Outcome(cell, work(cell, data, callback, None), None)
            except Exception as error:
                outcome = Outcome(cell, None, error)
            yield outcome
    finally:
        torch.set_num_threads(before)


def side_by_side(
    cells: Sequence[Cell],
    source: ReadData,
    work: Work,
    follow: Follow,
    *,
    workers: int,
    threads: int,
) -> Generator[Outcome, None, None]:
    """Several cells at a time, in processes; outcomes come as they are ready.

    A process that dies, or a fault of the GPU, also ends the other processes on that GPU: their
    cells go on from the last checkpoint, in new processes, once. Ctrl-C asks the workers to save
    and stop, and so does closing the generator. A worker ends when its parent is gone.
    """
    callbacks = {cell.title: follow(cell) for cell in cells}
    for again in (True, False):
        lost: list[Cell] = []
        with closing(
            _in_processes(cells, source, work, callbacks, workers=workers, threads=threads)
        ) as outcomes:
            for outcome in outcomes:
                if again and isinstance(outcome.error, BrokenProcessPool | torch.AcceleratorError):
                    lost.append(outcome.cell)
                elif isinstance(outcome.error, BrokenProcessPool):
                    raise HeadtailError(
                        "A worker process died, probably because it ran out of memory. Start the "
                        "comparison again with fewer ",
                        Setting("workers"),
                        ".",
                    ) from outcome.error
                else:
                    yield outcome
        if not lost:
            return
        cells = lost


def _in_processes(
    cells: Sequence[Cell],
    source: ReadData,
    work: Work,
    callbacks: Mapping[str, Callback],
    *,
    workers: int,
    threads: int,
) -> Generator[Outcome, None, None]:
    context = _context()
    news = context.Queue()
    stop = context.Event()
    followers = Followers(callbacks, news)
    begin_with = (source, news, stop, threads, dict(os.environ))
    with (
        ProcessPoolExecutor(workers, context, _begin, begin_with) as pool,
        interrupts() as interrupted,
    ):
        with sigint_blocked():
            waiting = {pool.submit(_perform, cell, work): cell for cell in cells}
        try:
            while waiting and not interrupted.is_set():
                done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                followers.pass_on()
                for future in done:
                    cell = waiting.pop(future)
                    error = future.exception()
                    if not isinstance(error, BrokenProcessPool):
                        followers.wait_for(cell.title)
                    yield Outcome(cell, None if error else future.result(), error)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            followers.end()
        if interrupted.is_set():
            raise Stopped


def _context() -> Any:
    """How processes start: forked from a process that has imported what all of them need, so that
    it is imported once and not by each; where the system has no such thing, from scratch.
    """
    if "forkserver" not in get_all_start_methods():  # Windows
        return get_context("spawn")
    context = get_context("forkserver")
    # It is only imported there: nothing has used a GPU, or started threads, before a worker forks.
    context.set_forkserver_preload(["headtail.comparison.cell"])
    return context


_WORKER: dict[str, Any] = {}
"""What a worker process has: set once when it starts, and empty in the parent."""


def _begin(
    source: ReadData, news: Any, stop: Any, threads: int, environment: dict[str, str]
) -> None:
    # The process that workers are forked from may be older than what is set here now.
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # again: not every system passes it on
    torch.set_num_threads(threads)
    news.cancel_join_thread()  # unread news must not keep the process alive
    _WORKER.update(source=source, news=news, stop=stop, data=None)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    # everything is on disk by then; an orderly exit of torch takes half a second
    atexit.register(os._exit, 0)


def _perform(cell: Cell, work: Work) -> Any:
    reporter = Reporter(cell.title, _WORKER["news"])
    try:
        if _WORKER["stop"].is_set():
            raise Stopped
        if _WORKER["data"] is None:
            _WORKER["data"] = _WORKER["source"]()
        return work(cell, _WORKER["data"], reporter, _WORKER["stop"])
    finally:
        reporter.over()
