"""Which interactions of a log are trained on, validated on and tested on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headtail.data.event_sort import Events, kth_smallest
from headtail.data.readers.log_scan import Scanned
from headtail.data.tables.columns import DataTables
from headtail.errors import HeadtailError, Setting

VALIDATION = 0.1
"""Share of what is not tested that is kept for validation."""
SEED = 0


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where parts begin.

    Attributes:
        split: "given", "time", "last", "session" or "random".
        validation: first time of validation, or None.
        test: first time of testing, or None.
        part_of: `[u]` the part of each session or user, where whole ones are held out; or None.
        validated: whether the validation part is given, so that training leaves none.
    """

    split: str
    validation: int | None = None
    test: int | None = None
    part_of: np.ndarray | None = None
    validated: bool = False

    @classmethod
    def of(cls, log: Scanned, split: str, holdout: float, tables: DataTables) -> Cuts:
        """The cuts of a log."""
        cuts = cls._of(log, split, holdout, tables)
        return replace(cuts, validated=tables.validation is not None)

    @classmethod
    def _of(cls, log: Scanned, split: str, holdout: float, tables: DataTables) -> Cuts:
        timed = tables.train.roles.time is not None
        if split == "time":
            total = sum(len(times) for times in log.trained_times())
            if total < 2:
                raise _one_row(tables)
            test, before = kth_smallest(log.trained_times, _first_held_out(total, holdout))
            if not before:
                raise _one_time(tables)
            return cls(split, _last_tenth(log, before), test)
        if split == "given":
            if tables.validation is not None or not timed:
                return cls(split)
            before = sum(len(times) for times in log.trained_times())
            return cls(split, validation=_last_tenth(log, before))
        if split == "last":
            return cls(split)
        key = np.random.default_rng(SEED).permutation(len(log.who))
        if split == "session" and timed:
            key = _starts(log)
        return cls(split, part_of=_whole(key, holdout))

    def of_users(self, first: int, end: int) -> Cuts:
        """The same for the users from `first` up to `end`, excluded."""
        if self.part_of is None:
            return self
        return replace(self, part_of=self.part_of[first:end])


def part_of_events(events: Events, given: np.ndarray, cuts: Cuts) -> np.ndarray:
    """`[n]` 0 for training, 1 for validation, 2 for testing.

    Args:
        events: of whole users, sorted.
        given: `[n]` the part that each event was given in.
        cuts: where parts begin.
    """
    part = given.astype(np.int8)
    trained = part == 0
    cut = _cut(events.user[trained], events.time[trained], cuts)
    part[trained] = np.where(cut == 1, 0, cut) if cuts.validated else cut
    return part


def _cut(user: np.ndarray, time: np.ndarray, cuts: Cuts) -> np.ndarray:
    """The part of events that were given to train on."""
    if cuts.part_of is not None:
        return cuts.part_of[user]
    part = np.zeros(len(user), np.int8)
    if cuts.split == "last":
        behind = _behind(user)
        part[behind == 1] = 1
        part[behind == 0] = 2
        return part
    if cuts.validation is not None:
        part[time >= cuts.validation] = 1
    if cuts.test is not None:
        part[time >= cuts.test] = 2
    return part


def _behind(user: np.ndarray) -> np.ndarray:
    """How many events of the same user come after each."""
    ends = np.searchsorted(user, user, side="right")
    return ends - 1 - np.arange(len(user))


def _first_held_out(total: int, share: float) -> int:
    return min(max(total - round(share * total), 1), total - 1)


def _last_tenth(log: Scanned, before: int) -> int | None:
    """The first time of the last tenth of so many events, the earliest ones; None where nothing
    would be left to train on.
    """
    if before < 2:
        return None
    cut, earlier = kth_smallest(log.trained_times, _first_held_out(before, VALIDATION))
    return cut if earlier else None


def _starts(log: Scanned) -> np.ndarray:
    """When each session begins."""
    starts = np.full(len(log.who), np.iinfo(np.int64).max)
    for records, _ in log.events():
        np.minimum.at(starts, records["user"], records["time"])
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


def _one_row(tables: DataTables) -> HeadtailError:
    return HeadtailError(
        f"`{tables.train.path}` holds a single interaction, so that none is left to test on. Pass "
        "more of them, or a test file."
    )


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
