"""Points: features and ragged labels, as every reader returns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.image_files import ImageFiles
from headtail.errors import HeadtailError

if TYPE_CHECKING:
    import pyarrow as pa

WORTH_A_KERNEL = 64
"""Rows from which gathering them is compiled."""


@dataclass(frozen=True, eq=False)
class Bag:
    """Sparse rows: point i holds `values[offsets[i]:offsets[i+1]]` in columns
    `columns[offsets[i]:offsets[i+1]]`.

    Attributes:
        offsets: `[n + 1]`.
        columns: `[nnz]` int32 column ids.
        values: `[nnz]` float32.
        num_columns: D.

    >>> bag = Bag(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]).int(), torch.ones(3), 3)
    >>> bag.to_dense()
    tensor([[1., 0., 1.],
            [0., 1., 0.]])
    >>> bag.rows(torch.tensor([1, 1])).columns
    tensor([1, 1], dtype=torch.int32)
    """

    offsets: Int64[Tensor, " n1"]
    columns: Int[Tensor, " nnz"]
    values: Float32[Tensor, " nnz"]
    num_columns: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.columns.device

    def rows(self, ids: Int64[Tensor, " k"]) -> Bag:
        """These rows, in this order."""
        if self.device.type == "cpu" and len(ids) >= WORTH_A_KERNEL:
            return self._rows_by_kernel(ids)
        picked = pick(self.offsets, ids)
        return Bag(
            picked.offsets,
            self.columns[picked.values],
            self.values[picked.values],
            self.num_columns,
        )

    def _rows_by_kernel(self, ids: Int64[Tensor, " k"]) -> Bag:
        from headtail.kernels.cpu import bag as cpu_bag

        offsets = torch.zeros(len(ids) + 1, dtype=torch.int64)
        torch.cumsum(self.offsets[ids + 1] - self.offsets[ids], 0, out=offsets[1:])
        columns = self.columns.new_empty(int(offsets[-1]))
        values = self.values.new_empty(int(offsets[-1]))
        old = (self.offsets, self.columns, self.values)
        new = (offsets, columns, values)
        cpu_bag.take(*(one.numpy() for one in (*old, ids, *new)))
        return Bag(offsets, columns, values, self.num_columns)

    def to_dense(self) -> Float32[Tensor, "n D"]:
        """`[n, D]`; repeated columns are summed."""
        row = torch.arange(len(self), device=self.device).repeat_interleave(
            self.offsets.diff(), output_size=len(self.columns)
        )
        dense = torch.zeros(len(self), self.num_columns, device=self.device)
        return dense.index_put_((row, self.columns.long()), self.values, accumulate=True)

    def to(self, device: torch.device | str) -> Bag:
        """The same rows on another device."""
        return Bag(
            self.offsets.to(device),
            self.columns.to(device),
            self.values.to(device),
            self.num_columns,
        )


@dataclass(frozen=True, eq=False)
class Picked:
    """Rows of a bag that stay where they are: what a batch holds, so that no feature is copied.

    Attributes:
        bag: all rows.
        ids: `[n]` which of them.
        most: entries that n rows can have, where it is known.

    >>> bag = Bag(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]).int(), torch.ones(3), 3)
    >>> Picked(bag, torch.tensor([1, 1])).gathered().columns
    tensor([1, 1], dtype=torch.int32)
    """

    bag: Bag
    ids: Int64[Tensor, " n"]
    most: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def gathered(self) -> Bag:
        """The rows one after the other, as a bag of their own."""
        return self.bag.rows(self.ids)


Progress: TypeAlias = Callable[[str, float], None]
"""Told by readers: what is being done, and the share of it that is done."""

Features: TypeAlias = Bag | Tensor
"""What an encoder takes: sparse rows, a dense float32 matrix `[n, D]`, or pictures, uint8 `[n, 3,
h, w]`.
"""


@dataclass(frozen=True, eq=False)
class Points:
    """Examples with any number of labels each.

    Attributes:
        features: sparse or dense rows, pictures, or files of pictures, one a point.
        labels: the labels of each point; a point may have none.
        num_labels: L.
        seen: labels that must not be recommended again to a point (what a user has already), or
            None.
        rows: `[n]` the row of its source that each point stands in, from 0; None where point i is
            row i.
        users: what the source calls the user of each point, numbers or strings, where it tells.
    """

    features: Features | ImageFiles
    labels: Ragged
    num_labels: int
    seen: Ragged | None = None
    rows: Int64[Tensor, " n"] | None = None
    users: pa.Array | None = None

    def __post_init__(self) -> None:
        n = len(self.features)
        sizes = {"labels": len(self.labels.offsets) - 1}
        sizes |= {
            name: len(each)
            for name, each in (("rows", self.rows), ("users", self.users))
            if each is not None
        }
        for name, size in sizes.items():
            if size != n:
                raise HeadtailError(
                    f"`features` has {n:,} points but `{name}` {size:,}. They belong together."
                )

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_features(self) -> int:
        """D; of pictures, their pixels in three colours."""
        if isinstance(self.features, Bag):
            return self.features.num_columns
        return (
            3 * self.features.size**2
            if isinstance(self.features, ImageFiles)
            else self.features.shape[1:].numel()
        )

    @property
    def picture(self) -> tuple[int, int] | None:
        """Height and width of the pictures that a model sees; None where features are something
        else.
        """
        if isinstance(self.features, ImageFiles):
            return self.features.size, self.features.size
        shape = () if isinstance(self.features, Bag) else self.features.shape
        return (shape[2], shape[3]) if len(shape) == 4 else None

    @property
    def num_pairs(self) -> int:
        """Number of (point, label) pairs."""
        return len(self.labels.values)

    def select(self, ids: Int64[Tensor, " k"]) -> Points:
        """These points, in this order."""
        features = (
            self.features[ids] if isinstance(self.features, Tensor) else self.features.rows(ids)
        )
        seen = None if self.seen is None else ragged_rows(self.seen, ids)
        users = None if self.users is None else self.users.take(ids.numpy())
        given = {
            "features": features,
            "labels": ragged_rows(self.labels, ids),
            "seen": seen,
            "users": users,
        }
        return replace(self, **given, rows=ids if self.rows is None else self.rows[ids])


@dataclass(frozen=True, eq=False)
class DataSet:
    """What a reader returns.

    Attributes:
        name: short, for tables.
        train: to learn from.
        test: to measure on.
        validation: to stop on; None lets training hold out a part of `train`.
        label_names: what each label is called in the source, or None if ids are its names.
        notes: sentences about the data that a user should see.
        digest: changes with the content.
        unlabelled: rows of the test part without a label that training knows, where `test` has not
            got them: a model answers them, but nothing can be measured on them.
        whole: every row of the source, where it has no test part and `test` was held out of them;
            or None.
        read_as: where the data lay and how they were read, by the names of the options.
    """

    name: str
    train: Points
    test: Points
    validation: Points | None = None
    label_names: list[str] | list[int] | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""
    unlabelled: Points | None = None
    whole: Points | None = None
    read_as: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> Points:
        """Every row of the test part, with or without a label, in the order of the source."""
        return self.test if self.unlabelled is None else _in_order(self.test, self.unlabelled)


def pick(offsets: Int64[Tensor, " n1"], ids: Int64[Tensor, " k"]) -> Ragged:
    """Positions of the entries of these rows, one row after the other, and the new offsets."""
    start = offsets[ids]
    lengths = offsets[ids + 1] - offsets[ids]
    new = torch.zeros(len(ids) + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(lengths, 0, out=new[1:])
    total = int(new[-1])
    positions = torch.arange(total, device=offsets.device) + (start - new[:-1]).repeat_interleave(
        lengths, output_size=total
    )
    return Ragged(positions, new)


def ragged_rows(ragged: Ragged, ids: Int64[Tensor, " k"]) -> Ragged:
    """These rows of a ragged array."""
    picked = pick(ragged.offsets, ids)
    return Ragged(ragged.values[picked.values], picked.offsets)


def _in_order(first: Points, second: Points) -> Points:
    """The sparse points of both, by their rows."""
    assert isinstance(first.features, Bag)
    assert isinstance(second.features, Bag)
    assert first.rows is not None
    assert second.rows is not None
    rows = torch.cat([first.rows, second.rows])
    columns = torch.cat([first.features.columns, second.features.columns])
    values = torch.cat([first.features.values, second.features.values])
    offsets = _behind(first.features.offsets, second.features.offsets)
    both = Points(
        Bag(offsets, columns, values, first.features.num_columns),
        _joined(first.labels, second.labels),
        first.num_labels,
        None if first.seen is None or second.seen is None else _joined(first.seen, second.seen),
        rows,
        None if first.users is None else _concatenated(first.users, second.users),
    )
    return both.select(rows.argsort(stable=True))


def _joined(first: Ragged, second: Ragged) -> Ragged:
    return Ragged(torch.cat([first.values, second.values]), _behind(first.offsets, second.offsets))


def _behind(first: Int64[Tensor, " n1"], second: Int64[Tensor, " m1"]) -> Int64[Tensor, " k1"]:
    """Offsets of rows that stand behind others."""
    return torch.cat([first, second[1:] + first[-1]])


def _concatenated(*arrays: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(arrays)
