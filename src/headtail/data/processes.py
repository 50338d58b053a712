"""Work on many tasks in several processes, or in this one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from types import ModuleType, TracebackType
from typing import Any, TypeAlias, TypeVar

from headtail.errors import HeadtailError, check_count

Report: TypeAlias = Callable[[float], None]
"""Called with the share of the work that is done."""
Task = TypeVar("Task")
Result = TypeVar("Result")
LIMIT = "HEADTAIL_PROCESSES"
"""The environment variable with the most processes that read data."""
MANY = 1 << 23
"""Rows that are worth the time to start processes for."""


def most_processes() -> int:
    """The number of cores that this process may use, or fewer where the user says so."""
    limit = os.environ.get(LIMIT)
    if limit is not None:
        if not limit.isdecimal():
            raise HeadtailError(
                f"The environment variable {LIMIT} must be a number of processes, but is `{limit}`."
            )
        return check_count(LIMIT, int(limit))
    cores = getattr(os, "sched_getaffinity", None)
    return len(cores(0)) if cores else os.cpu_count() or 1


def processes_for(rows: Iterable[int | None], pieces: int) -> int:
    """How many processes read tables of so many rows, where that is known, in so many pieces."""
    many = sum(number or 0 for number in rows) >= MANY
    return min(most_processes(), pieces) if many else 1


class Processes:
    """Processes that do the same work on many tasks. One process is this one.

    A worker that dies ends all of them with one sentence; Ctrl-C stops the tasks under way. A
    worker ends when its parent is gone.

    Args:
        number: of processes.

    >>> with Processes(1) as processes:
    ...     processes.map(lambda task, report: task * 2, [1, 2])
    [2, 4]
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        if self.number > 1:
            context = get_context("spawn")
            self._done = context.Value("d", 0.0)
            self._stop = context.Event()
            begin_with = (self._done, self._stop)
            self._pool = ProcessPoolExecutor(self.number, context, _begin, begin_with)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._stop.set()
            self._pool.shutdown(cancel_futures=True)

    def map(
        self,
        work: Callable[[Task, Report], Result],
        tasks: Sequence[Task],
        report: Report | None = None,
    ) -> list[Result]:
        """What `work(task, report)` returns for each task, in the order of the tasks.

        Args:
            work: a function of a module, which calls its `report` now and then.
            tasks: values that can be sent to other processes.
            report: called with the share of all tasks that is done.
        """
        if self._pool is None:
            return _in_turn(work, tasks, report)
        self._done.value = 0.0
        with sigint_blocked(), without_main():
            futures = [self._pool.submit(_perform, work, task) for task in tasks]
        try:
            self._watch(futures, report)
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise HeadtailError(
                "A process that read the data died, probably because it ran out of memory. Set the "
                f"environment variable {LIMIT} to fewer processes than {self.number}."
            ) from error

    def _watch(self, futures: list[Future[Any]], report: Report | None) -> None:
        """Wait for all, or for the first that fails, and report on the way."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=0.2)
            for future in done:
                future.result()
            if report:
                report(min(1.0, self._done.value / len(futures)) if waiting else 1.0)


def _in_turn(
    work: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report | None
) -> list[Result]:
    results = []
    for number, task in enumerate(tasks):

        def on(share: float, before: int = number) -> None:
            if report:
                report((before + share) / len(tasks))

        results.append(work(task, on))
        on(1.0)
    return results


_WORKER: dict[str, Any] = {}
"""What a worker process has: set once when it starts, and empty in the parent."""


def _begin(done: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # again: not every system passes it on
    _WORKER.update(done=done, stop=stop)
    threading.Thread(target=leave_with_parent, daemon=True).start()


def _perform(work: Callable[[Task, Report], Result], task: Task) -> Result:
    before = 0.0

    def report(share: float) -> None:
        nonlocal before
        if _WORKER["stop"].is_set():
            raise KeyboardInterrupt
        with _WORKER["done"].get_lock():
            _WORKER["done"].value += share - before
        before = share

    result = work(task, report)
    report(1.0)
    return result


def leave_with_parent() -> None:
    """End with the process that started the work, which is not always the one that this was forked
    from.
    """
    parent = parent_process()
    assert parent is not None, "a worker has been started by another process"
    parent.join()
    os._exit(1)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Processes that start in here ignore Ctrl-C, even while they start: their parent asks them to
    stop.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # a Ctrl-C in the meantime waits, and is not lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Processes that start in here do not run the user's script, which may read data at its top
    level, again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
