"""A log sorted by who and time, and split into parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headtail.data.cache import Store
from headtail.data.event_sort import AT_ONCE, Events, read_events, sort_events
from headtail.data.processes import Processes, Report, processes_for
from headtail.data.progress import Progress
from headtail.data.readers.log_events import Log, check_same_kinds
from headtail.data.readers.log_scan import PARTS, Scanned, pieces_of, scan_log
from headtail.data.readers.log_splits import Cuts, part_of_events
from headtail.data.tables.vocabulary import Vocabulary

WRITTEN = {"item": np.int32, "part": np.int8, "time": np.int64, "row": np.int64}
"""What is known of each event, one file each, and its type."""

WITH = {"with": "rows, times and overlap"}
"""Part of the recipe of what is kept of a log, but not of its digest: it changes no number."""


@dataclass(frozen=True, eq=False)
class Sorted:
    """Interactions in the order of who and time, in files.

    Attributes:
        who: the name of each user or session; its place is its id.
        items: the name of each item that occurs.
        offsets: `[u + 1]` where the interactions of each begin.
        item: `[p]` the item of each.
        part: `[p]` 0 for training, 1 for validation, 2 for testing.
        time: `[p]` when; 0 where it is not known.
        row: `[p]` its row in the table of its part.
        described: `[items]` whether each item has features.
        counts: numbers of rows, duplicates and others, for notes.
    """

    who: Vocabulary
    items: Vocabulary
    offsets: np.ndarray
    item: np.ndarray
    part: np.ndarray
    time: np.ndarray
    row: np.ndarray
    described: np.ndarray
    counts: dict[str, Any]

    def blocks(self) -> Iterator[tuple[int, np.ndarray, slice]]:
        """Ids of the first, offsets and place of the interactions of some, block by block."""
        first = 0
        while first < len(self.who):
            end = int(np.searchsorted(self.offsets, self.offsets[first] + AT_ONCE, side="right"))
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
    """Read a log, sort it, and split it; all files are in the store's scratch folder."""
    check_same_kinds(log)
    folder = store.scratch()
    pieces = pieces_of(log, folder)
    rows = [part.table.rows for part in log.tables.parts.values()]
    with Processes(processes_for(rows, len(pieces))) as processes:
        scanned = scan_log(log, pieces, processes, progress)
        if progress:
            progress("looking for the split", 0)
        cuts = Cuts.of(scanned, log.split, log.holdout, log.tables)
        return _sorted(log, scanned, cuts, folder, processes, progress)


class Range(NamedTuple):
    """The events of a range of users, in files.

    Attributes:
        pieces: in each file, where they begin, how many they are, and the part of that file.
        first: the first user.
        cuts: of this range.
        timed: whether times are known.
        place: where the events of the range go.
        folder: of the arrays to write to.
    """

    pieces: list[tuple[Path, int, int, int]]
    first: int
    cuts: Cuts
    timed: bool
    place: slice
    folder: Path


def _sorted(
    log: Log,
    scanned: Scanned,
    cuts: Cuts,
    folder: Path,
    processes: Processes,
    progress: Progress | None,
) -> Sorted:
    total = int(scanned.ranges.events[-1])
    arrays = {
        name: np.memmap(folder / name, kind, "w+", shape=(total,)) for name, kind in WRITTEN.items()
    }
    timed = log.tables.train.roles.time is not None
    ranges = [Range(timed=timed, folder=folder, **about) for about in _ranges(scanned, cuts)]
    done = processes.map(_sort, ranges, progress and partial(progress, "sorting"))
    for block in scanned.blocks:
        block.events.unlink()
    sizes = np.sum([sizes for sizes, _, _ in done], axis=0).tolist()
    repeated, trained = (sum(numbers[place] for numbers in done) for place in (1, 2))
    counts = {"rows": total, "repeated": repeated, "sizes": sizes, "test_from": cuts.test}
    counts["dropped"] = scanned.dropped[:2]
    counts["times"] = scanned.times
    counts["tested_and_trained"] = trained
    offsets = np.r_[0, np.cumsum(scanned.counts)]
    about = {"described": scanned.described, "counts": counts}
    return Sorted(scanned.who, scanned.items, offsets, **arrays, **about)


def _ranges(scanned: Scanned, cuts: Cuts) -> Iterator[dict[str, Any]]:
    """What is known about each range."""
    ranges = scanned.ranges
    for number in range(len(ranges)):
        starts, ends = scanned.starts[:, number], scanned.starts[:, number + 1]
        pieces = [
            (block.events, start, end - start, block.part)
            for block, start, end in zip(
                scanned.blocks, starts.tolist(), ends.tolist(), strict=True
            )
            if end > start
        ]
        first, last = ranges.users[number : number + 2].tolist()
        place = slice(*ranges.events[number : number + 2].tolist())
        yield {"pieces": pieces, "first": first, "cuts": cuts.of_users(first, last), "place": place}


def _sort(about: Range, report: Report) -> tuple[np.ndarray, int, int]:
    """Sort the events of a range, and write what is in `WRITTEN`.

    Returns:
        Events per part, how many repeat another one, and how many are in the given test part and
        in training too.
    """
    records = np.concatenate([read_events(*piece[:3]) for piece in about.pieces])
    records["user"] -= about.first
    given = np.repeat(
        np.array([piece[3] for piece in about.pieces], np.int8),
        [piece[2] for piece in about.pieces],
    )
    # What is tested comes after what is trained on, whatever its time.
    order, events = sort_events(records, given if about.cuts.split == "given" else None)
    part = part_of_events(events, given[order], about.cuts)
    for name, array in (*events._asdict().items(), ("part", part)):
        if name in WRITTEN:
            file = np.memmap(about.folder / name, WRITTEN[name], "r+")
            file[about.place] = array
    sizes = np.bincount(part, minlength=len(PARTS))
    both = 0
    if about.timed and about.cuts.split == "given":
        both = _tested_and_trained(events, given[order])
    return sizes, _repeated(events, about.timed), both


def _tested_and_trained(events: Events, given: np.ndarray) -> int:
    """How many test events equal one that was given to train on: user, item and time."""
    order = np.lexsort((given, events.time, events.item, events.user))
    equal = [np.diff(array[order]) == 0 for array in (events.user, events.item, events.time)]
    begins = np.r_[True, ~np.logical_and.reduce(equal)][: len(order)]
    first = given[order][np.flatnonzero(begins)[np.cumsum(begins) - 1]]
    return int(((given[order] == PARTS.index("test")) & (first == 0)).sum())


def _repeated(events: Events, timed: bool) -> int:
    """How many events equal another one of the same user and item and, where it is known, time."""
    user, item, time, _ = events
    if not timed:
        time = np.zeros_like(time)
    same = (np.diff(user) == 0) & (np.diff(time) == 0)
    near = np.r_[same, False] | np.r_[False, same]
    user, item, time = (array[near] for array in (user, item, time))
    order = np.lexsort((item, time, user))
    equal = [np.diff(array[order]) == 0 for array in (user, item, time)]
    return int(np.logical_and.reduce(equal).sum()) if len(order) else 0
