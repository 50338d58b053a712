"""Sequences of items, as examples prefix → next item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import Bag, DataSet, Points, Progress
from headtail.data.readers.parquet import (
    Columns,
    Vocabulary,
    check_same_kind,
    holds_ids,
    label_names,
    save_ids,
    saved_ids,
)
from headtail.errors import HeadtailError, check_count

CELLS = 1 << 20
"""Entries of features held in memory at once."""


def read_sequences(
    train: Path, test: Path | None = None, *, last: int = 10, progress: Progress | None = None
) -> DataSet:
    """Read sessions or histories from Parquet: a list column `items` (or the only list column) of
    item ids in order.

    The session [a, b, c] becomes the examples [a] → b and [a, b] → c. The features of an example
    are the bag of the last n items before its target: the item i steps back has the value 1/i,
    summed where an item repeats. Columns and labels are the same items, sorted: numbers by size,
    strings by their bytes.

    With a test file, its rows are the prefix (the list) and its `target`; where there is no such
    column, the last item of the list is the target. Rows of a training file with a `target` are
    read alike. Without a test file the last item of each sequence is its test target, the one
    before it its validation target, and what stands before them is for training.

    Items are those of training. Others are left out of the features. Examples with such a target
    are left out, but test rows with such a target, with none (a `target` that is null) or with
    nothing before it are kept as `unlabelled`.

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
    ([5, 7, 9], tensor([0, 2], dtype=torch.int32))
    >>> data.test.features.to_dense()
    tensor([[0.5000, 1.0000, 0.0000]])
    """
    last = check_count("last", last)
    source = Columns.of(train)
    source.need_lists()
    if test is None and source.target:
        raise HeadtailError(
            f"`{train}` has a column `target`, so its rows are examples as they stand. Pass a test "
            "file too."
        )
    files = [train] if test is None else [train, test]
    recipe = {"reader": "sequences", "last": last}
    entry = cached(
        files, recipe | {"with": "rows and users"}, partial(_build, source, test, last, progress)
    )
    return DataSet(
        name=train.stem,
        train=_points(entry, "train"),
        test=_points(entry, "test"),
        validation=_points(entry, "validation")
        if entry.facts["points"].get("validation")
        else None,
        label_names=label_names(entry),
        notes=_notes(entry, test is None),
        digest=key_of(files, recipe),  # what is trained and tested, whatever else is kept of it
        unlabelled=_points(entry, "unlabelled") if entry.facts["points"]["unlabelled"] else None,
    )


def _build(
    source: Columns, test: Path | None, last: int, progress: Progress | None, store: Store
) -> None:
    if test is None:
        plan = [
            (source, {"train": _but_last_two, "validation": _last_but_one, "test": _last}, True)
        ]
    else:
        held_out = Columns.of(test)
        plan = [
            (source, {"train": _target if source.target else _every}, False),
            (held_out, {"test": _target if held_out.target else _last}, True),
        ]
    known = Vocabulary.of(_training_items(source, test is None, progress))
    if not len(known):
        raise HeadtailError(
            f"`{source.path}` holds no items to train on. Write sequences of 4 items or more, or "
            "pass a test file."
        )
    known.save(store)
    store.facts |= {"num_labels": len(known), "points": {}, "unknown": {}, "short": 0}
    for columns, targets_of, tests in plan:
        writers = {
            part: _Writer(store, part, last)
            for part in (*targets_of, *(["unlabelled"] if tests else []))
        }
        for some in _encoded(columns, known, progress, tests):
            store.facts["short"] += (
                0 if columns.target else int(((some.before == 0) & (some.behind == 0)).sum())
            )
            for part, is_target in targets_of.items():
                writers[part].add(some, np.flatnonzero(is_target(some.before, some.behind)))
            if tests:
                writers["unlabelled"].add_rows(some, writers["test"].rows)
                if some.users is not None:
                    save_ids(store, "users", some.users)
        if "train" in writers and not writers["train"].points:
            raise HeadtailError(
                f"`{columns.path}` gives no train example: its sequences are too short, or their "
                "targets unknown."
            )
        if tests and not columns.rows:
            raise HeadtailError(
                f"`{columns.path}` has no rows, so it gives no test example. Write a row a "
                "sequence."
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


@dataclass(frozen=True)
class _Some:
    """Some sequences one after the other, each with its target, if it has one, as its last item.

    Attributes:
        ids: `[p]` items, −1 where unknown.
        before: `[p]` items of its sequence before each.
        behind: `[p]` and behind it.
        offsets: `[n + 1]` where sequences begin.
        first: row of the first sequence.
        users: `[n]` whose they are, or None.
    """

    ids: np.ndarray
    before: np.ndarray
    behind: np.ndarray
    offsets: np.ndarray
    first: int
    users: pa.Array | None

    def row_of(self, places: np.ndarray) -> np.ndarray:
        """Rows of the file, of places in `ids`."""
        return self.first + np.searchsorted(self.offsets, places, side="right") - 1


def _lists(
    columns: Columns, progress: Progress | None, tests: bool = False
) -> Iterator[tuple[pa.Array, np.ndarray, pa.Array | None, int, pa.Array | None]]:
    """Items one list after the other, offsets of the lists, targets where the file has them, the
    first row; of tests, the users.
    """
    name = columns.need_lists()
    target = columns.target
    whose = columns.user if tests else None
    for first, batch in columns.read(
        [column for column in (name, target, whose) if column], progress
    ):
        items, offsets = columns.ragged_ids(batch.column(name), name, first)
        targets = users = None
        if target:
            targets = columns.ids(
                batch.column(target), target, first, or_null=items.type if tests else None
            )
        if whose and holds_ids(batch.column(whose).type):
            users = columns.ids(batch.column(whose), whose, first)
        yield items, offsets, targets, first, users


def _training_items(source: Columns, alone: bool, progress: Progress | None) -> Iterator[pa.Array]:
    for items, offsets, targets, *_ in _lists(source, progress):
        yield items.filter(pa.array(_places(offsets)[1] > 1)) if alone else items
        if targets is not None:
            yield targets


def _encoded(
    columns: Columns, known: Vocabulary, progress: Progress | None, tests: bool
) -> Iterator[_Some]:
    for items, offsets, targets, first, users in _lists(columns, progress, tests):
        check_same_kind(known, items, columns, columns.need_lists())
        ids = known.ids(items)
        if targets is not None:
            check_same_kind(known, targets, columns, "target")
            ids = np.insert(ids, offsets[1:], known.ids(targets))
        begins = offsets if targets is None else offsets + np.arange(len(offsets))
        yield _Some(ids, *_places(begins), begins, first, users)


def _places(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many items stand before, and behind, each item in its sequence."""
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1])
    return place - offsets[:-1].repeat(lengths), offsets[1:].repeat(lengths) - 1 - place


class _Writer:
    """Appends the examples of one part of the data to the cache, a block of bounded size at a time."""

    def __init__(self, store: Store, part: str, last: int) -> None:
        self.store = store
        self.part = part
        self.last = last
        self.points = self.entries = self.unknown = 0
        self.rows = np.empty(0, np.int64)
        store.append(f"{part}_offsets", np.zeros(1, np.int64))

    def add(self, some: _Some, targets: np.ndarray) -> None:
        """Examples with targets at these places; those without a known target are only counted."""
        known = targets[some.ids[targets] >= 0]
        self.unknown += len(targets) - len(known)
        self.rows = some.row_of(known)
        self._append(some.ids, known, some.before[known], self.rows, some.ids[known])
        self.store.facts["unknown"][self.part] = self.unknown

    def add_rows(self, some: _Some, labelled: np.ndarray) -> None:
        """An example without a label for each row that is not among those `labelled`."""
        left = np.delete(np.arange(len(some.offsets) - 1), labelled - some.first)
        # behind which the target stands, or nothing at all
        before = np.maximum(np.diff(some.offsets)[left] - 1, 0)
        ids = np.r_[some.ids, np.int32(-1)]
        self._append(
            ids, some.offsets[left] + before, before, some.first + left, np.empty(0, np.int32)
        )

    def _append(
        self,
        ids: np.ndarray,
        targets: np.ndarray,
        before: np.ndarray,
        rows: np.ndarray,
        labels: np.ndarray,
    ) -> None:
        """Bags of what stands before the targets, a block of bounded size at a time."""
        for block in np.array_split(
            np.arange(len(targets)), -(-len(targets) * self.last // CELLS) or 1
        ):
            lengths, columns, values = recent(ids, targets[block], before[block], self.last)
            self.store.append(f"{self.part}_offsets", self.entries + np.cumsum(lengths))
            self.store.append(f"{self.part}_columns", columns)
            self.store.append(f"{self.part}_values", values)
            self.entries += len(columns)
        self.store.append(f"{self.part}_rows", rows)
        self.store.append(f"{self.part}_labels", labels)
        self.points += len(targets)
        self.store.facts["points"][self.part] = self.points


def recent(
    ids: np.ndarray, targets: np.ndarray, before: np.ndarray, last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    columns = np.where(
        steps <= before[:, None], ids[np.maximum(targets[:, None] - steps, 0)], -1
    ).astype(np.int32)
    order = np.argsort(columns, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    weights = (1 / steps)[order]
    first = columns >= 0
    first[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    starts = np.flatnonzero(first[columns >= 0])
    values = np.add.reduceat(weights[columns >= 0], starts) if len(starts) else np.empty(0)
    return first.sum(axis=1), columns[first], values.astype(np.float32)


def _points(entry: Entry, part: str) -> Points:
    names = ("offsets", "columns", "values", "labels", "rows")
    offsets, columns, values, labels, rows = (entry.arrays[f"{part}_{name}"] for name in names)
    num_labels = entry.facts["num_labels"]
    users = saved_ids(entry, "users") if part in ("test", "unlabelled") else None
    one_each = torch.arange(len(rows) + 1).clamp(max=len(labels))
    users = None if users is None else users.take(rows.numpy())
    return Points(
        Bag(offsets, columns, values, num_labels),
        Ragged(labels, one_each),
        num_labels,
        rows=rows,
        users=users,
    )


def _notes(entry: Entry, alone: bool) -> tuple[str, ...]:
    split = (
        ", with the last item of each sequence for testing and the one before it for validation"
        if alone
        else ""
    )
    notes = [f"Read as sequences: prefix → next item{split}."]
    for part, unknown in entry.facts["unknown"].items():
        if unknown:
            share = f"{unknown:,} of {unknown + entry.facts['points'][part]:,} {part} examples"
            kept = (
                ", or none: they are answered, but not measured"
                if part == "test"
                else " and are left out"
            )
            notes.append(f"{share} have a target that never occurs in training{kept}.")
    if short := entry.facts["short"]:
        notes.append(
            f"{short:,} sequences have only one item and give no example to train or measure on."
        )
    return tuple(notes)
