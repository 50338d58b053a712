"""From the tables of a log to files of events, with ids and in the order of ranges of users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headtail.data.event_sort import AT_ONCE, EVENT, EventRanges, read_events
from headtail.data.processes import Processes, Report
from headtail.data.progress import Progress
from headtail.data.readers.log_events import Dropped, Log
from headtail.data.tables.columns import DataTables
from headtail.data.tables.tally import add_up, ids_of, write_tally
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError, Setting

PARTS = ("train", "validation", "test")
ROWS = 1 << 20
"""Events that a process reads into memory at once."""


class Piece(NamedTuple):
    """What is read in one process.

    Attributes:
        log: with a piece of one table, as the table to train on.
        part: the part of the data that it belongs to.
        path: of the files to write, without their endings.
    """

    log: Log
    part: int
    path: Path


class Block(NamedTuple):
    """Events in files, in which users and items have numbers of their own.

    Attributes:
        events: the file of `EVENT` records.
        part: the part of the data that they were given in.
    """

    events: Path
    part: int

    @property
    def who(self) -> Path:
        """The file of its users."""
        return self.events.with_suffix(".who")

    @property
    def items(self) -> Path:
        """The file of its items."""
        return self.events.with_suffix(".items")


@dataclass(frozen=True, eq=False)
class Scanned:
    """The events of a log in files, each in the order of ranges of users.

    Attributes:
        who: the name of each user or session.
        items: the name of each item.
        counts: `[u]` events of each user or session.
        described: `[items]` whether each item has features.
        ranges: of users.
        blocks: the files, in the order of the log.
        starts: `[blocks, r + 1]` where each range begins in each file.
        dropped: interactions that the least rating leaves out.
    """

    who: Vocabulary
    items: Vocabulary
    counts: np.ndarray
    described: np.ndarray
    ranges: EventRanges
    blocks: list[Block]
    starts: np.ndarray
    dropped: Dropped

    def events(self) -> Iterator[tuple[np.ndarray, int]]:
        """The `EVENT` records of each block, and the part that they were given in."""
        for block in self.blocks:
            yield read_events(block.events), block.part

    def trained_times(self) -> Iterator[np.ndarray]:
        """The times of events that were given to train on, block by block."""
        for records, part in self.events():
            if part == 0:
                yield records["time"]


def scan_log(
    log: Log, pieces: list[Piece], processes: Processes, progress: Progress | None
) -> Scanned:
    """Read a log into files.

    Every piece of the log is read once, with users and items numbered as they come. Their names are
    then added up, and each file gets the ids of the whole log.
    """
    report = progress and partial(progress, f"reading {log.tables.train.called}")
    read = processes.map(_read, pieces, report)
    blocks = [block for of_piece, _ in read for block in of_piece]
    dropped = Dropped.total(of_piece for _, of_piece in read)
    if not blocks:
        raise _nothing(log, dropped)
    who, counts = add_up([block.who for block in blocks])
    items, described = _items(log, blocks)
    ranges = EventRanges.of(counts, AT_ONCE)
    tasks = [(block, ranges) for block in blocks]
    starts = np.stack(processes.map(_divide, tasks, progress and partial(progress, "giving ids")))
    return Scanned(who, items, counts, described, ranges, blocks, starts, dropped)


def _nothing(log: Log, dropped: Dropped) -> HeadtailError:
    path = log.tables.train.path
    if dropped.below:
        return HeadtailError(
            f"`{path}` holds no interaction with a rating of at least {log.min_rating:g}: the "
            f"largest is {dropped.largest:g}. Choose a smaller ",
            Setting("min_rating"),
            ".",
        )
    none = " with a rating" if dropped.missing else ""
    return HeadtailError(
        f"`{path}` holds no interaction{none}. Write a row for each: a user and an item."
    )


def _items(log: Log, blocks: list[Block]) -> tuple[Vocabulary, np.ndarray]:
    """The names of all items, and which of these have features."""
    paths = [block.items for block in blocks]
    if log.described is None:
        items, _ = add_up(paths)
        return items, np.zeros(len(items), bool)
    extra = blocks[0].events.with_name("described.items")
    write_tally(extra, log.described)
    items, _ = add_up([*paths, extra])
    described = np.zeros(len(items), bool)
    described[ids_of(extra)] = True
    return items, described


def pieces_of(log: Log, folder: Path) -> list[Piece]:
    """The tables of a log in pieces, in the order of the log."""
    pieces = []
    for name, columns in log.tables.parts.items():
        for table in columns.table.pieces(ROWS):
            tables = DataTables(replace(columns, table=table))
            small = replace(log, tables=tables, described=None)
            pieces.append(Piece(small, PARTS.index(name), folder / f"{len(pieces):06}"))
    return pieces


def _read(piece: Piece, report: Report) -> tuple[list[Block], Dropped]:
    """Write the events of a piece, block by block."""
    blocks: list[Block] = []
    dropped: list[Dropped] = []
    waiting: list[tuple[pa.Array, pa.Array, np.ndarray]] = []

    def write() -> None:
        block = Block(piece.path.with_suffix(f".{len(blocks)}.events"), piece.part)
        who, items, times = zip(*waiting, strict=True)
        waiting.clear()
        records = np.empty(sum(map(len, times)), EVENT)
        records["time"] = np.concatenate(times)
        records["user"] = write_tally(block.who, pa.concat_arrays(who))
        records["item"] = write_tally(block.items, pa.concat_arrays(items))
        records.tofile(block.events)
        blocks.append(block)

    table = piece.log.tables.train
    for events in piece.log.events(table, lambda _, share: report(share), dropped):
        if len(events[2]):
            waiting.append(events)
        if sum(len(times) for _, _, times in waiting) >= ROWS:
            write()
    if waiting:
        write()
    pa.default_memory_pool().release_unused()  # Arrow would keep it while other processes work
    return blocks, Dropped.total(dropped)


def _divide(task: tuple[Block, EventRanges], report: Report) -> np.ndarray:
    block, ranges = task
    return ranges.divide(block.events, ids_of(block.who), ids_of(block.items))
