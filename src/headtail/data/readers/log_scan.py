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
from headtail.data.readers.log_times import TimeRanges, notes_on_times
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


class PieceRead(NamedTuple):
    """What a piece held.

    Attributes:
        blocks: its events.
        dropped: interactions that the least rating leaves out.
        rows: the number of its rows.
        times: the ranges of its times; None without times.
    """

    blocks: list[Block]
    dropped: Dropped
    rows: int
    times: TimeRanges | None


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
        times: the `TimeRanges` of each part that has times, by its name.
    """

    who: Vocabulary
    items: Vocabulary
    counts: np.ndarray
    described: np.ndarray
    ranges: EventRanges
    blocks: list[Block]
    starts: np.ndarray
    dropped: Dropped
    times: dict[str, TimeRanges]

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
    blocks = [block for piece in read for block in piece.blocks]
    dropped = Dropped.total(piece.dropped for piece in read)
    if not blocks:
        raise _nothing(log, dropped)
    before = _rows_before(pieces, read)
    times = _times(pieces, read, before)
    notes_on_times(log.tables, times)  # before the long work: it may refuse them
    who, counts = add_up([block.who for block in blocks])
    items, described = _items(log, blocks)
    ranges = EventRanges.of(counts, AT_ONCE)
    first = [rows for rows, piece in zip(before, read, strict=True) for _ in piece.blocks]
    tasks = [(block, ranges, row) for block, row in zip(blocks, first, strict=True)]
    starts = np.stack(processes.map(_divide, tasks, progress and partial(progress, "giving ids")))
    return Scanned(who, items, counts, described, ranges, blocks, starts, dropped, times)


def _rows_before(pieces: list[Piece], read: list[PieceRead]) -> list[int]:
    """How many rows of the same part come before each piece."""
    total = [0] * len(PARTS)
    before = []
    for piece, found in zip(pieces, read, strict=True):
        before.append(total[piece.part])
        total[piece.part] += found.rows
    return before


def _times(pieces: list[Piece], read: list[PieceRead], before: list[int]) -> dict[str, TimeRanges]:
    of_parts: dict[str, list[TimeRanges]] = {}
    for piece, found, rows in zip(pieces, read, before, strict=True):
        if found.times is not None:
            of_parts.setdefault(PARTS[piece.part], []).append(found.times.behind(rows))
    totals = {name: TimeRanges.total(ranges) for name, ranges in of_parts.items()}
    return {name: total for name, total in totals.items() if total is not None}


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


def _read(piece: Piece, report: Report) -> PieceRead:
    """Write the events of a piece, block by block."""
    blocks: list[Block] = []
    dropped: list[Dropped] = []
    ranges: list[TimeRanges] = []
    waiting: list[tuple[pa.Array, pa.Array, np.ndarray, np.ndarray]] = []
    table = piece.log.tables.train
    timed = table.roles.time is not None

    def write() -> None:
        block = Block(piece.path.with_suffix(f".{len(blocks)}.events"), piece.part)
        who, items, times, rows = zip(*waiting, strict=True)
        waiting.clear()
        records = np.empty(sum(map(len, times)), EVENT)
        records["time"] = np.concatenate(times)
        records["row"] = np.concatenate(rows)
        records["user"] = write_tally(block.who, pa.concat_arrays(who))
        records["item"] = write_tally(block.items, pa.concat_arrays(items))
        records.tofile(block.events)
        blocks.append(block)
        if timed:
            ranges.append(TimeRanges.of(records["time"], records["row"]))

    for events in piece.log.events(table, lambda _, share: report(share), dropped):
        if len(events[2]):
            waiting.append(events)
        if sum(len(times) for _, _, times, _ in waiting) >= ROWS:
            write()
    if waiting:
        write()
    pa.default_memory_pool().release_unused()  # Arrow would keep it while other processes work
    return PieceRead(blocks, Dropped.total(dropped), table.rows, TimeRanges.total(ranges))


def _divide(task: tuple[Block, EventRanges, int], report: Report) -> np.ndarray:
    block, ranges, first = task
    return ranges.divide(block.events, ids_of(block.who), ids_of(block.items), first)
