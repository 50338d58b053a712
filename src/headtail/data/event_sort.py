"""Sorting a log of events by user and time, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

AT_ONCE = 1 << 24
"""Events that are sorted in memory at once."""
BINS = 1 << 16
EVENT = np.dtype([("user", np.int32), ("item", np.int32), ("time", np.int64)])


class Events(NamedTuple):
    """Events of users.

    Attributes:
        user: `[n]` int32 ids.
        item: `[n]` int32 ids.
        time: `[n]` int64.
    """

    user: np.ndarray
    item: np.ndarray
    time: np.ndarray


class EventSorter:
    """Sorts events by user, then by time; events at the same time keep their order.

    Events are appended to files, each for a range of users, and each file is sorted in memory by
    itself. So memory depends on `at_once` and on the longest history, not on the number of events.

    Args:
        folder: an empty folder for the files.
        counts: `[U]` how many events each user will have.
        at_once: events that are sorted in memory at once.

    >>> sorter = EventSorter(getfixture("tmp_path"), np.array([2, 1]), at_once=2)
    >>> sorter.add(Events(*map(np.array, ([1, 0, 0], [7, 8, 9], [10, 20, 15]))))
    >>> [events.item.tolist() for events in sorter.sorted()]
    [[9, 8], [7]]
    """

    def __init__(self, folder: Path, counts: np.ndarray, at_once: int = AT_ONCE) -> None:
        self.folder = folder
        # A new range begins wherever the events so far fill another `at_once`.
        before = np.cumsum(counts) - counts
        _, self._range_of = np.unique(before // at_once, return_inverse=True)

    @property
    def ranges(self) -> int:
        """How many ranges of users there are."""
        return int(self._range_of[-1]) + 1 if len(self._range_of) else 0

    def add(self, events: Events) -> None:
        """More events, in any order."""
        records = np.empty(len(events.user), EVENT)
        for name, array in events._asdict().items():
            records[name] = array
        range_of = self._range_of[events.user]
        order = np.argsort(range_of, kind="stable")
        present, starts = np.unique(range_of[order], return_index=True)
        for number, part in zip(present, np.split(records[order], starts[1:]), strict=True):
            with self._file(number).open("ab") as file:
                part.tofile(file)

    def sorted(self) -> Iterator[Events]:
        """All events, a range of whole users at a time; the files are removed."""
        for number in range(self.ranges):
            path = self._file(number)
            records = np.fromfile(path, EVENT) if path.exists() else np.empty(0, EVENT)
            path.unlink(missing_ok=True)
            records = records[np.lexsort((records["time"], records["user"]))]
            yield Events(*(np.ascontiguousarray(records[name]) for name in EVENT.names or ()))

    def _file(self, number: int) -> Path:
        return self.folder / f"range-{number:06}"


def kth_smallest(blocks: Callable[[], Iterable[np.ndarray]], k: int) -> int:
    """The k-th smallest, from 0, of many whole numbers, in bounded memory.

    Each pass over the numbers counts them in bins, and the next pass looks at one of these only.

    Args:
        blocks: reads the numbers again, some at a time.
        k: from 0 up to the number of numbers, excluded.

    >>> kth_smallest(lambda: [np.array([5, 90]), np.array([-3, 7])], 2)
    7
    """
    low = min(int(block.min()) for block in blocks() if len(block))
    high = max(int(block.max()) for block in blocks() if len(block))
    while low < high:
        width = -(-(high - low + 1) // BINS)
        counts = np.zeros(BINS, np.int64)
        for block in blocks():
            inside = block[(block >= low) & (block <= high)]
            counts += np.bincount((inside - low) // width, minlength=BINS)
        within = int(np.searchsorted(np.cumsum(counts), k, side="right"))
        k -= int(counts[:within].sum())
        low += within * width
        high = min(low + width - 1, high)
    return low
