"""A log as sequences: each user's items, or each session's, in the order of time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.histories import Histories
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.item_features import items_recipe
from headtail.data.readers.log_events import Log
from headtail.data.readers.log_notes import notes_on_log
from headtail.data.readers.log_scan import PARTS
from headtail.data.readers.log_sort import WITH, sort_log
from headtail.data.readers.sequence_examples import ExampleWriter, Sequences, places, points_of
from headtail.data.reading import Reading
from headtail.data.tables.columns import DataTables, renamed
from headtail.data.tables.vocabulary import label_names, save_ids, saved_ids
from headtail.errors import HeadtailError, Sentence, Setting, check_count


def read_log(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read a log as sequences as `reading` says.

    Every item but the first of a user is an example: what came before it → the item. Examples are
    trained on, validated on or tested on by the split; a test example may look at everything before
    it, so that users without training history have features too.
    """
    last = check_count("last", reading.last)
    log = Log.of(tables, reading)
    files = list(tables.parts.values())
    recipe = log.recipe | {"as": "sequences"} | items_recipe(reading)
    entry = cached(files, recipe | WITH, partial(_build, log, progress))
    users = saved_ids(entry, "users")

    def points(part: str) -> Points:
        return points_of(entry, "train", part, last, users)

    data = DataSet(
        tables.train.table.title,
        points("train"),
        _tested(points("test"), entry, log),
        points("validation") if entry.facts["points"]["validation"] else None,
        label_names=label_names(entry),
        notes=notes_on_log(log, entry.facts, "sequences") + _notes(entry),
        digest=key_of(files, recipe | {"last": last}),
        whole=_everyone(entry, last) if tables.test is None else None,
    )
    return renamed(data, tables)


def _tested(points: Points, entry: Entry, log: Log) -> Points:
    """Test points with the row and the time of what is tested."""
    columns = log.tables.test or log.tables.train
    times = None
    if columns.roles.time is not None:
        times = columns.times_as_read(entry.arrays["test_times"].numpy(), columns.roles.time)
    return replace(points, rows=entry.arrays["test_places"], times=times)


def _everyone(entry: Entry, last: int) -> Points:
    """A point per user or session that has seen all its items: what comes next is not known."""
    items, offsets = entry.arrays["train_items"], entry.arrays["train_offsets"]
    num_labels = entry.facts["num_labels"]
    number = len(offsets) - 1
    sequence = torch.arange(number)
    nothing = Ragged(items[:0], torch.zeros(number + 1, dtype=torch.int64))
    histories = Histories(items, offsets, sequence, offsets.diff(), last, num_labels)
    rows, users = entry.arrays["first_rows"], saved_ids(entry, "users")
    return Points(histories, nothing, num_labels, rows=rows, users=users)


def _build(log: Log, progress: Progress | None, store: Store) -> None:
    events = sort_log(log, store, progress)
    known = events.in_training() | events.described
    id_of = np.where(known, np.cumsum(known) - 1, -1).astype(np.int32)
    events.items.keep(known).save(store)
    facts: dict[str, Any] = {"num_labels": int(known.sum()), "points": {}, "unknown": {}}
    store.facts |= facts | events.counts
    writer = ExampleWriter(store, "train", PARTS)
    alone = 0
    for first, offsets, inside in events.blocks():
        sequences = Sequences(id_of[events.item[inside]], offsets, first, None)
        before, behind = places(offsets)
        alone += int(((before == 0) & (behind == 0)).sum())
        writer.add(sequences)
        part = events.part[inside]
        for number, name in enumerate(PARTS):
            targets = np.flatnonzero((part == number) & (before > 0))
            known = writer.add_examples(name, sequences, targets)
            if name == "test":
                store.append("test_places", events.row[inside][known])
                store.append("test_times", events.time[inside][known])
        store.append("first_rows", np.minimum.reduceat(events.row[inside], offsets[:-1]))
    store.facts["alone"] = alone
    save_ids(store, "users", events.who.names)
    whole = log.split in ("given", "last")  # a share decides nothing
    for name, share in (("train", "smaller"), ("test", "larger")):
        if not store.facts["points"][name]:
            raise HeadtailError(
                f"`{log.tables.train.path}` gives no {name} example: an example is an item with "
                f"another of the same {log.who} before it. Choose another split",
                Sentence() if whole else Sentence(f", or a {share} ", Setting("holdout")),
                ".",
            )


def _notes(entry: Entry) -> tuple[str, ...]:
    notes = []
    for part in ("validation", "test"):
        if unknown := entry.facts["unknown"][part]:
            total = unknown + entry.facts["points"][part]
            notes.append(
                f"{unknown:,} of {total:,} {part} examples have a target that never occurs in "
                "training and are left out."
            )
    return tuple(notes)
