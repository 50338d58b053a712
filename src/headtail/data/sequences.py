"""Sequences of items, as examples prefix → next item."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from headtail.data.cache import Entry, Store, cached
from headtail.data.parquet import Columns, Vocabulary, check_same_kind, label_names
from headtail.data.points import Bag, DataSet, Points, Progress
from headtail.errors import HeadtailError, check_count
from headtail.targets import Ragged

CELLS = 1 << 20
"""Entries of features held in memory at once."""


def read_sequences(train: Path, test: Path | None = None, *, last: int = 10, progress: Progress | None = None) -> DataSet:
    """Read sessions or histories from Parquet: a list column `items` (or the only list column) of item ids in order.

    The session [a, b, c] becomes the examples [a] → b and [a, b] → c. The features of an example are the bag of the last n
    items before its target: the item i steps back has the value 1/i, summed where an item repeats. Columns and labels are
    the same items, sorted: numbers by size, strings by their bytes.

    With a test file, its rows are the prefix (the list) and its `target`; where there is no such column, the last item of the
    list is the target. Rows of a training file with a `target` are read alike. Without a test file the last item of each
    sequence is its test target, the one before it its validation target, and what stands before them is for training.

    Items are those of training. Others are left out of the features, and examples with such a target are left out.

    Args:
        train: Parquet file.
        test: Parquet file, or None to leave one out.
        last: n, how many items before the target are looked at.
        progress: told what is done, and how much of it.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> import pyarrow.parquet as pq
    >>> pq.write_table(pa.table({"items": [[7, 5, 9]]}), folder / "train.parquet")
    >>> pq.write_table(pa.table({"items": [[5, 7]], "target": [9]}), folder / "test.parquet")
    >>> data = read_sequences(folder / "train.parquet", folder / "test.parquet")
    >>> data.label_names, data.train.labels.values
    (['5', '7', '9'], tensor([0, 2], dtype=torch.int32))
    >>> data.test.features.to_dense()
    tensor([[0.5000, 1.0000, 0.0000]])
    """
    last = check_count("last", last)
    source = Columns.of(train)
    source.need_lists()
    if test is None and source.target:
        raise HeadtailError(f"`{train}` has a column `target`, so its rows are examples as they stand. Pass a test file too.")
    files = [train] if test is None else [train, test]
    entry = cached(files, {"reader": "sequences", "last": last}, partial(_build, source, test, last, progress))
    return DataSet(
        name=train.stem,
        train=_points(entry, "train"),
        test=_points(entry, "test"),
        validation=_points(entry, "validation") if entry.facts["points"].get("validation") else None,
        label_names=label_names(entry),
        notes=_notes(entry, test is None),
        digest=entry.key,
    )


def _build(source: Columns, test: Path | None, last: int, progress: Progress | None, store: Store) -> None:
    if test is None:
        plan = [(source, {"train": _but_last_two, "validation": _last_but_one, "test": _last})]
    else:
        held_out = Columns.of(test)
        plan = [
            (source, {"train": _target if source.target else _every}),
            (held_out, {"test": _target if held_out.target else _last}),
        ]
    known = Vocabulary.of(_training_items(source, test is None, progress))
    if not len(known):
        raise HeadtailError(f"`{source.path}` holds no items to train on. Write sequences of 4 items or more, or pass a test file.")
    known.save(store)
    store.facts |= {"num_labels": len(known), "points": {}, "unknown": {}, "short": 0}
    for columns, targets_of in plan:
        writers = {part: _Writer(store, part, last) for part in targets_of}
        for ids, before, behind in _encoded(columns, known, progress):
            store.facts["short"] += 0 if columns.target else int(((before == 0) & (behind == 0)).sum())
            for part, is_target in targets_of.items():
                writers[part].add(ids, before, is_target(before, behind))
        for part in ("train", "test"):
            if part in writers and not writers[part].points:
                raise HeadtailError(
                    f"`{columns.path}` gives no {part} example: its sequences are too short, or their targets unknown."
                )


# Which items are targets, by how many stand before and behind them in their sequence.


def _every(before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return before > 0


def _target(before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return behind == 0


def _last(before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind == 0)


def _last_but_one(before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind == 1)


def _but_last_two(before: np.ndarray, behind: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind > 1)


def _lists(columns: Columns, progress: Progress | None) -> Iterator[tuple[pa.Array, np.ndarray, pa.Array | None]]:
    """Items one list after the other, offsets of the lists, and targets where the file has them."""
    name = columns.need_lists()
    for first, batch in columns.read([name, columns.target] if columns.target else [name], progress):
        items, offsets = columns.ragged_ids(batch.column(name), name, first)
        yield items, offsets, columns.ids(batch.column(columns.target), columns.target, first) if columns.target else None


def _training_items(source: Columns, alone: bool, progress: Progress | None) -> Iterator[pa.Array]:
    for items, offsets, targets in _lists(source, progress):
        yield items.filter(pa.array(_places(offsets)[1] > 1)) if alone else items
        if targets is not None:
            yield targets


def _encoded(columns: Columns, known: Vocabulary, progress: Progress | None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """`[p]` item ids one sequence after the other, each with the number of items before and behind it; a target is the last."""
    for items, offsets, targets in _lists(columns, progress):
        check_same_kind(known, items, columns, columns.need_lists())
        ids = known.ids(items)
        if targets is not None:
            check_same_kind(known, targets, columns, "target")
            ids = np.insert(ids, offsets[1:], known.ids(targets))
        yield ids, *_places(offsets if targets is None else offsets + np.arange(len(offsets)))


def _places(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many items stand before, and behind, each item in its sequence."""
    lengths, place = np.diff(offsets), np.arange(offsets[-1])
    return place - offsets[:-1].repeat(lengths), offsets[1:].repeat(lengths) - 1 - place


class _Writer:
    """Appends the examples of one part of the data to the cache, a block of bounded size at a time."""

    def __init__(self, store: Store, part: str, last: int) -> None:
        self.store, self.part, self.last = store, part, last
        self.points = self.entries = self.unknown = 0
        store.append(f"{part}_offsets", np.zeros(1, np.int64))

    def add(self, ids: np.ndarray, before: np.ndarray, is_target: np.ndarray) -> None:
        """Examples whose targets stand where `is_target`; those without a known target are only counted."""
        known = np.flatnonzero(is_target & (ids >= 0))
        self.unknown += int(is_target.sum()) - len(known)
        for block in np.array_split(known, -(-len(known) * self.last // CELLS) or 1):
            lengths, columns, values = recent(ids, block, before[block], self.last)
            self.store.append(f"{self.part}_offsets", self.entries + np.cumsum(lengths))
            self.store.append(f"{self.part}_columns", columns)
            self.store.append(f"{self.part}_values", values)
            self.store.append(f"{self.part}_labels", ids[block])
            self.points, self.entries = self.points + len(block), self.entries + len(columns)
        self.store.facts["points"][self.part], self.store.facts["unknown"][self.part] = self.points, self.unknown


def recent(ids: np.ndarray, targets: np.ndarray, before: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bags of the items before each target, weighted by how recent they are.

    Args:
        ids: `[p]` items one sequence after the other, −1 where unknown.
        targets: `[t]` places of the targets in `ids`.
        before: `[t]` how many items of its sequence stand before each.
        last: how many of these are looked at.

    Returns:
        `[t]` entries a bag; `[nnz]` columns, rising and different within a bag; `[nnz]` values.

    >>> recent(np.array([7, 5, 7, 9]), np.array([3]), np.array([3]), last=3)
    (array([2]), array([5, 7], dtype=int32), array([0.5      , 1.3333334], dtype=float32))
    """
    steps = np.arange(1, last + 1)
    columns = np.where(steps <= before[:, None], ids[np.maximum(targets[:, None] - steps, 0)], -1).astype(np.int32)
    order = np.argsort(columns, axis=1, kind="stable")
    columns, weights = np.take_along_axis(columns, order, axis=1), (1 / steps)[order]
    first = columns >= 0
    first[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    starts = np.flatnonzero(first[columns >= 0])
    values = np.add.reduceat(weights[columns >= 0], starts) if len(starts) else np.empty(0)
    return first.sum(axis=1), columns[first], values.astype(np.float32)


def _points(entry: Entry, part: str) -> Points:
    offsets, columns, values, labels = (entry.arrays[f"{part}_{name}"] for name in ("offsets", "columns", "values", "labels"))
    num_labels = entry.facts["num_labels"]
    one_each = torch.arange(len(labels) + 1)
    return Points(Bag(offsets, columns, values, num_labels), Ragged(labels, one_each), num_labels)


def _notes(entry: Entry, alone: bool) -> tuple[str, ...]:
    split = ", with the last item of each sequence for testing and the one before it for validation" if alone else ""
    notes = [f"Read as sequences: prefix → next item{split}."]
    for part, unknown in entry.facts["unknown"].items():
        if unknown:
            share = f"{unknown:,} of {unknown + entry.facts['points'][part]:,} {part} examples"
            notes.append(f"{share} have a target that never occurs in training and are left out.")
    if short := entry.facts["short"]:
        notes.append(f"{short:,} sequences have only one item and give no example.")
    return tuple(notes)
