"""A log of interactions: who had what, when; sorted by who and time, and split into parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.cache import Store
from headtail.data.event_sort import AT_ONCE, EVENT, Events, EventSorter
from headtail.data.points import Progress
from headtail.data.readers.item_features import as_named, described_items
from headtail.data.readers.log_splits import PARTS, Cuts, Raw, part_of_events
from headtail.data.reading import Reading
from headtail.data.tables.columns import Columns, DataTables, check_same_kind
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError, Setting


@dataclass(frozen=True, eq=False)
class Log:
    """Tables of interactions, and how they are read.

    Attributes:
        tables: to train on, and perhaps to test and validate on.
        who: "session" where interactions belong to sessions, else "user".
        split: how the parts are made: "given", "time", "last", "session" or "random".
        holdout: share for testing.
        min_rating: interactions with a rating below it are dropped.
        described: names of items with features, which are labels even if training lacks them.
    """

    tables: DataTables
    who: str
    split: str
    holdout: float
    min_rating: float | None
    described: pa.Array | None = None

    @classmethod
    def of(cls, tables: DataTables, reading: Reading, as_users: bool = False) -> Log:
        """How `reading` says that the log in these tables is read: sessions count more than users,
        unless points are users.
        """
        roles = tables.train.roles
        who = "session" if roles.session and not (as_users and roles.user) else "user"
        split = "given" if tables.test is not None else reading.split
        if split == "auto":
            timed = "time" if roles.time else "random" if as_users else "last"
            split = "session" if who == "session" and not as_users else timed
        for wanted in ("time", "session"):
            if split == wanted and getattr(roles, wanted) is None:
                raise HeadtailError(
                    Setting("split", split),
                    f" needs a column of {wanted}s, but `{tables.train.path}` has "
                    f"{tables.train.listed}. Name it with ",
                    Setting(wanted),
                    ", or choose another split.",
                )
        rating = _checked_rating(tables, reading)
        described = described_items(reading)
        return cls(tables, who, split, reading.holdout, rating, described)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything but the content that decides what is read, as JSON."""
        names = (self.who, "item", "time", "rating")
        columns = [
            {name: getattr(part.roles, name) for name in names}
            for part in self.tables.parts.values()
        ]
        holdout = None if self.split in ("given", "last") else self.holdout
        return {
            "reader": "log",
            "columns": columns,
            "parts": list(self.tables.parts),
            "split": [self.split, holdout],
            "min_rating": self.min_rating,
        }

    def events(
        self, columns: Columns, progress: Progress | None
    ) -> Iterator[tuple[pa.Array, pa.Array, np.ndarray]]:
        """Who, item and time of each interaction, block by block; without a time column, the row.

        Interactions with a rating that is too low are dropped.
        """
        roles = columns.roles
        who, item = (_need(columns, name) for name in (self.who, "item"))
        rating = roles.rating if self.min_rating is not None else None
        names = [name for name in (who, item, roles.time, rating) if name is not None]
        for first, read in columns.read(names, progress):
            batch = read
            at = np.arange(first, first + len(batch))
            if rating is not None:
                kept = pc.greater_equal(batch.column(rating), self.min_rating).fill_null(False)  # pyright: ignore[reportAttributeAccessIssue]
                batch = batch.filter(kept)
                at = at[kept.to_numpy(zero_copy_only=False)]
            when = at
            if roles.time is not None:
                when = columns.times(batch.column(roles.time), roles.time, first)
            yield (
                columns.ids(batch.column(who), who, first),
                columns.ids(batch.column(item), item, first),
                when,
            )


def _checked_rating(tables: DataTables, reading: Reading) -> float | None:
    if reading.min_rating is None:
        return None
    for part in tables.parts.values():
        if part.roles.rating is None:
            raise HeadtailError(
                Setting("min_rating"),
                f" needs a column of ratings, but `{part.path}` has {part.listed}. Name it with ",
                Setting("rating"),
                ".",
            )
    return reading.min_rating


def _need(columns: Columns, role: str) -> str:
    column = getattr(columns.roles, role)
    if column is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}, and none of them is a {role}. "
            "Name it with ",
            Setting(role),
            ".",
        )
    return column


@dataclass(frozen=True, eq=False)
class Sorted:
    """Interactions in the order of who and time, in files.

    Attributes:
        who: the name of each user or session; its place is its id.
        items: the name of each item that occurs.
        offsets: `[u + 1]` where the interactions of each begin.
        item: `[p]` the item of each.
        part: `[p]` 0 for training, 1 for validation, 2 for testing.
        described: `[items]` whether each item has features.
        counts: numbers of rows, duplicates and others, for notes.
    """

    who: Vocabulary
    items: Vocabulary
    offsets: np.ndarray
    item: np.ndarray
    part: np.ndarray
    described: np.ndarray
    counts: dict[str, Any]

    def blocks(self, at_once: int = AT_ONCE) -> Iterator[tuple[int, np.ndarray, slice]]:
        """Ids of the first, offsets and place of the interactions of some, block by block."""
        first = 0
        while first < len(self.who):
            end = int(np.searchsorted(self.offsets, self.offsets[first] + at_once, side="right"))
            end = min(max(end - 1, first + 1), len(self.who))
            offsets = self.offsets[first : end + 1]
            yield first, offsets - offsets[0], slice(int(offsets[0]), int(offsets[-1]))
            first = end

    def in_training(self) -> np.ndarray:
        """`[items]` whether each item occurs in training."""
        known = np.zeros(len(self.items), bool)
        for _, _, inside in self.blocks():
            known[self.item[inside][self.part[inside] == 0]] = True
        return known


def sort_log(log: Log, store: Store, progress: Progress | None) -> Sorted:
    """Read a log, sort it, and split it; files that are needed on the way are in the store's
    folder, and removed with the returned value.
    """
    who, items = _names(log, progress)
    if not len(who):
        least = "" if log.min_rating is None else f" with a rating of at least {log.min_rating:g}"
        raise HeadtailError(
            f"`{log.tables.train.path}` holds no interaction{least}. Write a row for each: a user "
            "and an item."
        )
    folder = Path(tempfile.mkdtemp(dir=store.folder))
    raw = _encoded(log, who, items, folder / "events", progress)
    cuts = Cuts.of(raw, log.split, log.holdout, len(who), log.tables)
    offsets = np.r_[0, np.cumsum(raw.counts)]
    item = np.memmap(folder / "item", np.int32, "w+", shape=(int(offsets[-1]),))
    part = np.memmap(folder / "part", np.int8, "w+", shape=(int(offsets[-1]),))
    sorter = EventSorter(folder, raw.counts)
    for events in raw.blocks():
        sorter.add(events)
    done = repeated = 0
    timed = log.tables.train.roles.time is not None
    for block in sorter.sorted():
        events, given = _with_given(block, len(items), log.split == "given")
        here = slice(done, done + len(given))
        item[here] = events.item
        part[here] = part_of_events(events, given, cuts)
        repeated += _repeated(events, timed)
        done += len(given)
        if progress:
            progress("sorting", done / len(item))
    counts = {"rows": int(offsets[-1]), "repeated": repeated, **cuts.facts(part)}
    (folder / "events").unlink()
    described = np.zeros(len(items), bool)
    if log.described is not None:
        described[items.ids(as_named(items.names.type, log.described))] = True
    return Sorted(who, items, offsets, item, part, described, counts)


def _with_given(events: Events, num_items: int, by_part: bool) -> tuple[Events, np.ndarray]:
    """Events with their own items, and the part that each was given in."""
    given, item = np.divmod(events.item, num_items)
    events = events._replace(item=item)
    if not by_part:
        return events, given
    # What is tested comes after what is trained on, whatever its time.
    order = np.lexsort((events.time, given, events.user))
    return Events(*(array[order] for array in events)), given[order]


def _names(log: Log, progress: Progress | None) -> tuple[Vocabulary, Vocabulary]:
    """All users or sessions and all items, of all parts."""
    who: list[pa.Array] = []
    items: list[pa.Array] = []
    for columns in log.tables.parts.values():
        for user, item, _ in log.events(columns, progress):
            for kept, new in ((who, user), (items, item)):
                if kept and kept[0].type != new.type:
                    role = log.who if kept is who else "item"
                    check_same_kind(Vocabulary(kept[0]), new, columns, _need(columns, role))
                kept[:] = [pa.concat_arrays([*kept, new.unique()]).unique()]
    if log.described is not None and items:
        items.append(as_named(items[0].type, log.described))
    return Vocabulary.of(who), Vocabulary.of(items)


def _encoded(
    log: Log, who: Vocabulary, items: Vocabulary, path: Path, progress: Progress | None
) -> Raw:
    """All events in a file; the part that they were given in is in their item."""
    counts = np.zeros(len(who), np.int64)
    with path.open("wb") as file:
        for name, columns in log.tables.parts.items():
            for user, item, time in log.events(columns, progress):
                records = np.empty(len(user), EVENT)
                records["user"] = who.ids(user)
                records["item"] = items.ids(item) + PARTS.index(name) * len(items)
                records["time"] = time
                records.tofile(file)
                counts += np.bincount(records["user"], minlength=len(who))
    return Raw(path, counts, len(items))


def _repeated(events: Events, timed: bool) -> int:
    """How many events equal another one of the same user and item and, where it is known, time."""
    user, item, time = events
    if not timed:
        time = np.zeros_like(time)
    same = (np.diff(user) == 0) & (np.diff(time) == 0)
    near = np.r_[same, False] | np.r_[False, same]
    user, item, time = (array[near] for array in (user, item, time))
    order = np.lexsort((item, time, user))
    equal = [np.diff(array[order]) == 0 for array in (user, item, time)]
    return int(np.logical_and.reduce(equal).sum()) if len(order) else 0
