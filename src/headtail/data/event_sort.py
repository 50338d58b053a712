"""Sorting a log of events by user and time, in bounded memory and in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

AT_ONCE = 1 << 22
"""Events that are sorted in memory at once."""
BINS = 1 << 20
EVENT = np.dtype([("user", np.int32), ("item", np.int32), ("time", np.int64), ("row", np.int64)])


class Events(NamedTuple):
    """Events of users.

    Attributes:
        user: `[n]` int32 ids.
        item: `[n]` int32 ids.
        time: `[n]` int64.
        row: `[n]` int64 where each is in its source.
    """

    user: np.ndarray
    item: np.ndarray
    time: np.ndarray
    row: np.ndarray


@dataclass(frozen=True, eq=False)
class EventRanges:
    """Ranges of users with about as many events each as fit into memory.

    Attributes:
        users: `[r + 1]` the first user of each range, and the number of users.
        events: `[r + 1]` how many events are before each range, and in all.

    >>> EventRanges.of(np.array([2, 1, 1]), at_once=2).users
    array([0, 1, 3])
    """

    users: np.ndarray
    events: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, at_once: int) -> EventRanges:
        """The ranges of users who have so many events.

        Args:
            counts: `[u]` events of each user.
            at_once: events of a range. It may have more: users are never cut in two.
        """
        before = np.cumsum(counts) - counts
        # A new range begins wherever the events so far fill another `at_once`.
        _, users = np.unique(before // at_once, return_index=True)
        return cls(np.r_[users, len(counts)], np.r_[before[users], counts.sum()])

    def __len__(self) -> int:
        return len(self.users) - 1

    def divide(self, path: Path, user: np.ndarray, item: np.ndarray, first: int = 0) -> np.ndarray:
        """Put the events of a file in the order of the ranges, and give them their ids.

        Args:
            path: a file of `EVENT` records.
            user: `[k]` the id of each of the users that the file numbers 0 … k − 1.
            item: the same for items.
            first: the row of the source that the file numbers 0.

        Returns:
            `[r + 1]` where each range begins in the file.
        """
        records = np.fromfile(path, EVENT)
        range_of = np.searchsorted(self.users[1:], user, side="right")[records["user"]]
        records["user"] = user[records["user"]]
        records["item"] = item[records["item"]]
        records["row"] += first
        if len(self) <= 1 << 16:
            range_of = range_of.astype(np.uint16)  # such numbers are sorted much faster
        records[np.argsort(range_of, kind="stable")].tofile(path)
        return np.r_[0, np.cumsum(np.bincount(range_of, minlength=len(self)))]


def read_events(path: Path, start: int = 0, number: int = -1) -> np.ndarray:
    """Some of the `EVENT` records in a file."""
    return np.fromfile(path, EVENT, number, offset=start * EVENT.itemsize)


def sort_events(records: np.ndarray, given: np.ndarray | None) -> tuple[np.ndarray, Events]:
    """Events by user, then by `given`, then by time; others keep their order.

    Returns:
        The order, and the events in it.
    """
    keys = (records["time"], records["user"])
    order = np.lexsort(keys if given is None else (keys[0], given, keys[1]))
    return order, Events(*(records[name][order] for name in EVENT.names or ()))


def kth_smallest(blocks: Callable[[], Iterable[np.ndarray]], k: int) -> tuple[int, int]:
    """The k-th smallest, from 0, of many whole numbers, in bounded memory.

    Each pass over the numbers counts them in bins, and the next pass looks at one of these only.

    Args:
        blocks: reads the numbers again, some at a time.
        k: from 0 up to the number of numbers, excluded.

    Returns:
        The number, and how many are smaller.

    >>> kth_smallest(lambda: [np.array([5, 90]), np.array([-3, 7])], 2)
    (7, 2)
    >>> kth_smallest(lambda: [np.array([-(2**63), 2**63 - 1, 4])], 1)
    (4, 1)
    """
    low, high = _extremes(blocks())
    below = 0
    while low < high:
        width = -(-(high - low + 1) // BINS)
        counts = np.zeros(BINS, np.int64)
        for block in blocks():
            inside = block[(block >= low) & (block <= high)]
            # Without a sign: the difference of two times may be larger than any time.
            above = inside.astype(np.int64, copy=False).view(np.uint64) - np.uint64(low % 2**64)
            places = (above // np.uint64(width)).astype(np.int64)
            counts += np.bincount(places, minlength=BINS)
        ends = np.cumsum(counts)
        within = int(np.searchsorted(ends, k - below, side="right"))
        below += int(ends[within - 1]) if within else 0
        low += within * width
        high = min(low + width - 1, high)
    return low, below


def _extremes(blocks: Iterable[np.ndarray]) -> tuple[int, int]:
    ends = [(int(block.min()), int(block.max())) for block in blocks if len(block)]
    return min(low for low, _ in ends), max(high for _, high in ends)
