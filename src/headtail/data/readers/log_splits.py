"""Which interactions of a log are trained on, validated on and tested on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headtail.data.event_sort import AT_ONCE, EVENT, Events, kth_smallest
from headtail.data.tables.columns import DataTables
from headtail.errors import HeadtailError, Setting

PARTS = ("train", "validation", "test")
VALIDATION = 0.1
"""Share of what is not tested that is kept for validation."""
SEED = 0


@dataclass(frozen=True, eq=False)
class Raw:
    """Events in a file, in the order of the source.

    Attributes:
        path: the file, of `EVENT` records.
        counts: `[u]` events of each user or session.
        num_items: items; an event of the i-th given part has i times as much added to its item.
    """

    path: Path
    counts: np.ndarray
    num_items: int

    def blocks(self) -> Iterator[Events]:
        """The events, block by block."""
        with self.path.open("rb") as file:
            while len(records := np.fromfile(file, EVENT, AT_ONCE)):
                yield Events(*(np.ascontiguousarray(records[name]) for name in EVENT.names or ()))

    def trained_times(self) -> Iterator[np.ndarray]:
        """The times of events that were given to train on, block by block."""
        for events in self.blocks():
            yield events.time[events.item < self.num_items]


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where parts begin.

    Attributes:
        split: "given", "time", "last", "session" or "random".
        validation: first time of validation, or None.
        test: first time of testing, or None.
        part_of: `[u]` the part of each session or user, where whole ones are held out; or None.
    """

    split: str
    validation: int | None = None
    test: int | None = None
    part_of: np.ndarray | None = None

    @classmethod
    def of(cls, raw: Raw, split: str, holdout: float, number: int, tables: DataTables) -> Cuts:
        """The cuts of a log with so many users or sessions."""
        timed = tables.train.roles.time is not None
        if split == "time":
            total = int(raw.counts.sum())
            test = kth_smallest(raw.trained_times, _first_held_out(total, holdout))
            before = _counted(raw, test)
            validation = _last_tenth(raw, test, before)
            if not before:
                raise _one_time(tables)
            return cls(split, validation, test)
        if split == "given":
            if tables.validation is not None or not timed:
                return cls(split)
            before = int(raw.counts.sum()) - _others(raw)
            return cls(split, validation=_last_tenth(raw, None, before))
        if split == "last":
            return cls(split)
        key = np.random.default_rng(SEED).permutation(number)
        if split == "session" and timed:
            key = _starts(raw)
        return cls(split, part_of=_whole(key, holdout))

    def facts(self, part: np.ndarray) -> dict[str, Any]:
        """For notes, as JSON: interactions per part, and where testing begins."""
        sizes = [int((part == number).sum()) for number in range(len(PARTS))]
        return {"sizes": sizes, "test_from": self.test}


def part_of_events(events: Events, given: np.ndarray, cuts: Cuts) -> np.ndarray:
    """`[n]` 0 for training, 1 for validation, 2 for testing.

    Args:
        events: of whole users, sorted.
        given: `[n]` the part that each event was given in.
        cuts: where parts begin.
    """
    if cuts.part_of is not None:
        return cuts.part_of[events.user]
    if cuts.split == "last":
        behind = _behind(events.user)
        return np.where(behind == 0, 2, np.where(behind == 1, 1, 0)).astype(np.int8)
    part = given.astype(np.int8)
    if cuts.validation is not None:
        part = np.where((part == 0) & (events.time >= cuts.validation), 1, part).astype(np.int8)
    if cuts.test is not None:
        part = np.where(events.time >= cuts.test, 2, part).astype(np.int8)
    return part


def _behind(user: np.ndarray) -> np.ndarray:
    """How many events of the same user come after each."""
    ends = np.searchsorted(user, user, side="right")
    return ends - 1 - np.arange(len(user))


def _first_held_out(total: int, share: float) -> int:
    return min(max(total - round(share * total), 1), total - 1)


def _counted(raw: Raw, before: int) -> int:
    return sum(int((times < before).sum()) for times in raw.trained_times())


def _others(raw: Raw) -> int:
    return sum(int((events.item >= raw.num_items).sum()) for events in raw.blocks())


def _last_tenth(raw: Raw, before: int | None, total: int) -> int | None:
    """The first time of the last tenth of events before a time; None where nothing would be left to
    train on.
    """
    if total < 2:
        return None

    def blocks() -> Iterator[np.ndarray]:
        for times in raw.trained_times():
            yield times if before is None else times[times < before]

    cut = kth_smallest(blocks, _first_held_out(total, VALIDATION))
    return cut if cut > min(int(times.min()) for times in blocks() if len(times)) else None


def _starts(raw: Raw) -> np.ndarray:
    """When each session begins."""
    starts = np.full(len(raw.counts), np.iinfo(np.int64).max)
    for events in raw.blocks():
        np.minimum.at(starts, events.user, events.time)
    return starts


def _whole(key: np.ndarray, holdout: float) -> np.ndarray:
    """The part of each session: those with the largest keys are tested, those before them
    validated.
    """
    number = len(key)
    order = np.argsort(key, kind="stable")
    test = _first_held_out(number, holdout) if number > 1 else number
    validation = _first_held_out(test, VALIDATION) if test > 1 else test
    part = np.zeros(number, np.int8)
    part[order[validation:test]] = 1
    part[order[test:]] = 2
    return part


def _one_time(tables: DataTables) -> HeadtailError:
    return HeadtailError(
        f"`{tables.train.path}`, column `{tables.train.roles.time}`: too many interactions have "
        "the same time to split by it. Choose ",
        Setting("split", "last"),
        " or ",
        Setting("split", "random"),
        ", or a smaller ",
        Setting("holdout"),
        ".",
    )
