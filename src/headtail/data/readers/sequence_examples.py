"""Examples from sequences: bags of the items before each target, written to the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headtail.data.cache import Store


@dataclass(frozen=True)
class Sequences:
    """Sequences one after the other, each with its target, if it has one, as its last item.

    Attributes:
        ids: `[p]` items, −1 where unknown.
        before: `[p]` items of its sequence before each.
        behind: `[p]` items of its sequence behind each.
        offsets: `[n + 1]` where sequences begin.
        first: row of the first sequence.
        users: `[n]` the user of each sequence, or None.
    """

    ids: np.ndarray
    before: np.ndarray
    behind: np.ndarray
    offsets: np.ndarray
    first: int
    users: pa.Array | None

    def row_of(self, places: np.ndarray) -> np.ndarray:
        """The row in the file of each of these places in `ids`."""
        return self.first + np.searchsorted(self.offsets, places, side="right") - 1


def places(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many items are before, and behind, each item in its sequence."""
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1])
    return place - offsets[:-1].repeat(lengths), offsets[1:].repeat(lengths) - 1 - place


class ExampleWriter:
    """Appends the examples of one part of the data to the cache, a block of bounded size at a time.

    Args:
        store: takes the arrays.
        part: of the data, which names the arrays.
        last: how many items before the target are looked at.
        at_once: entries of features held in memory at once.
    """

    def __init__(self, store: Store, part: str, last: int, at_once: int) -> None:
        self.store = store
        self.part = part
        self.last = last
        self.at_once = at_once
        self.points = self.entries = self.unknown = 0
        self.rows = np.empty(0, np.int64)
        store.append(f"{part}_offsets", np.zeros(1, np.int64))

    def add(self, sequences: Sequences, targets: np.ndarray) -> None:
        """Examples with targets at these places; those without a known target are only counted."""
        known = targets[sequences.ids[targets] >= 0]
        self.unknown += len(targets) - len(known)
        self.rows = sequences.row_of(known)
        self._append(sequences.ids, known, sequences.before[known], self.rows, sequences.ids[known])
        self.store.facts["unknown"][self.part] = self.unknown

    def add_rows(self, sequences: Sequences, labelled: np.ndarray) -> None:
        """An example without a label for each row that is not among those `labelled`."""
        left = np.delete(np.arange(len(sequences.offsets) - 1), labelled - sequences.first)
        # The target is the item behind these, or there is none.
        before = np.maximum(np.diff(sequences.offsets)[left] - 1, 0)
        ids = np.r_[sequences.ids, np.int32(-1)]
        targets = sequences.offsets[left] + before
        self._append(ids, targets, before, sequences.first + left, np.empty(0, np.int32))

    def _append(
        self,
        ids: np.ndarray,
        targets: np.ndarray,
        before: np.ndarray,
        rows: np.ndarray,
        labels: np.ndarray,
    ) -> None:
        """Bags of the items before the targets, a block of bounded size at a time."""
        blocks = -(-len(targets) * self.last // self.at_once) or 1
        for block in np.array_split(np.arange(len(targets)), blocks):
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
        before: `[t]` how many items of its sequence are before each.
        last: how many of these are looked at.

    Returns:
        `[t]` entries per bag; `[nnz]` columns, ascending within a bag; `[nnz]` values.

    >>> recent(np.array([7, 5, 7, 9]), np.array([3]), np.array([3]), last=3)
    (array([2]), array([5, 7], dtype=int32), array([0.5      , 1.3333334], dtype=float32))
    """
    steps = np.arange(1, last + 1)
    items = ids[np.maximum(targets[:, None] - steps, 0)]
    columns = np.where(steps <= before[:, None], items, -1).astype(np.int32)
    order = np.argsort(columns, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    weights = (1 / steps)[order]
    first = columns >= 0
    first[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    starts = np.flatnonzero(first[columns >= 0])
    values = np.add.reduceat(weights[columns >= 0], starts) if len(starts) else np.empty(0)
    return first.sum(axis=1), columns[first], values.astype(np.float32)
