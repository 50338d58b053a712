"""Examples from sequences: the sequences once, and where each example's target is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store
from headtail.data.histories import Histories
from headtail.data.points import Points
from headtail.data.tables.columns import Columns
from headtail.data.tables.vocabulary import Vocabulary


def owners_of(columns: Columns) -> np.ndarray | None:
    """`[n]` int32: the user or session of each row of lists; None without such a column."""
    column = columns.user or columns.roles.session
    if column is None:
        return None
    names = [columns.ids(batch.column(column), column, at) for at, batch in columns.read([column])]
    return Vocabulary.of(names).ids(pa.concat_arrays(names))


def are_examples(columns: Columns) -> bool:
    """Whether rows with a target are examples (a user may have many) rather than whole sequences:
    no column shows that each row belongs to another user or session.
    """
    if columns.target is None:
        return False
    owners = owners_of(columns)
    return owners is None or len(np.unique(owners)) < len(owners)


@dataclass(frozen=True)
class Sequences:
    """Sequences one after the other, each with its target, if it has one, as its last item.

    Attributes:
        ids: `[p]` items, −1 where unknown.
        offsets: `[n + 1]` where sequences begin.
        first: row of the first sequence.
        users: `[n]` the user of each sequence, or None.
    """

    ids: np.ndarray
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
    """Appends the sequences of one source to the cache, and the examples of the parts in it.

    Args:
        store: takes the arrays.
        source: the name of the source, and of the arrays with its sequences.
        parts: names of the parts of the data whose examples it has.
    """

    def __init__(self, store: Store, source: str, parts: tuple[str, ...]) -> None:
        self.store = store
        self.source = source
        self.written = 0
        store.append(f"{source}_offsets", np.zeros(1, np.int64))
        for part in parts:
            store.facts["points"][part] = store.facts["unknown"][part] = 0

    def add(self, sequences: Sequences) -> None:
        """Append sequences, whose examples follow."""
        self.store.append(f"{self.source}_items", sequences.ids.astype(np.int32))
        self.store.append(f"{self.source}_offsets", self.written + sequences.offsets[1:])
        self.written += len(sequences.ids)

    def add_examples(self, part: str, sequences: Sequences, targets: np.ndarray) -> np.ndarray:
        """Examples with targets at these places; those without a known target are only counted.

        Returns:
            The places of the examples' targets.
        """
        known = targets[sequences.ids[targets] >= 0]
        self.store.facts["unknown"][part] += len(targets) - len(known)
        rows = sequences.row_of(known)
        ends = known - sequences.offsets[rows - sequences.first]
        self._append(part, rows, ends, sequences.ids[known].astype(np.int32))
        return known

    def add_rows(self, part: str, sequences: Sequences, labelled: np.ndarray) -> None:
        """An example without a label for each row that is not among those `labelled`."""
        left = np.delete(np.arange(len(sequences.offsets) - 1), labelled - sequences.first)
        # The target is the item behind these, or there is none.
        ends = np.maximum(np.diff(sequences.offsets)[left] - 1, 0)
        self._append(part, sequences.first + left, ends, np.empty(0, np.int32))

    def _append(self, part: str, rows: np.ndarray, ends: np.ndarray, labels: np.ndarray) -> None:
        self.store.append(f"{part}_rows", rows)
        self.store.append(f"{part}_ends", ends)
        self.store.append(f"{part}_labels", labels)
        self.store.facts["points"][part] += len(rows)


def points_of(
    entry: Entry, source: str, part: str, last: int, users: pa.Array | None = None
) -> Points:
    """The points of a part that an `ExampleWriter` wrote.

    Args:
        entry: the cache entry, with the number of labels among its facts.
        source: where the part's sequences are.
        part: of the data.
        last: how many items before the target a bag looks at.
        users: the user of each sequence, or None.
    """
    rows, ends, labels = (entry.arrays[f"{part}_{name}"] for name in ("rows", "ends", "labels"))
    sequences = entry.arrays[f"{source}_items"], entry.arrays[f"{source}_offsets"]
    num_labels = entry.facts["num_labels"]
    one_each = torch.arange(len(rows) + 1).clamp(max=len(labels))
    if users is not None:
        # Names stay where they are: a user may have many points. Row numbers are copied, because
        # torch moves a tensor to other memory when a process sends it, and Arrow would not know.
        users = pa.DictionaryArray.from_arrays(rows.numpy().copy(), users)
    return Points(
        Histories(*sequences, rows, ends, last, num_labels),
        Ragged(labels, one_each),
        num_labels,
        rows=rows,
        users=users,
    )
