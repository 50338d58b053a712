"""Bags: sparse rows of features, and rows of a bag that stay where they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor

from headtail.core.offsets import check_offsets
from headtail.core.targets import Ragged
from headtail.errors import HeadtailError, check_ids, check_inside
from headtail.kernels.dispatch import gather_kernels


@dataclass(frozen=True, eq=False)
class Bag:
    """Sparse rows of features, one after the other.

    Row i holds `values[offsets[i]:offsets[i+1]]` in columns `columns[offsets[i]:offsets[i+1]]`.

    Whatever reads entries of a bag calls `check` first. That is one pass over the offsets and
    columns of a bag that was made by hand or read from a file, and nothing from then on: `rows`,
    `to` and `with_tensors` make bags of it that are known to be right.

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
    _checked: tuple[int, int] | None = field(default=None, init=False, repr=False)
    """The versions of the offsets and columns that were checked: writing to them raises these."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def check(self) -> Bag:
        """Refuse offsets and columns with which a kernel would leave its memory; returns the bag.

        On a GPU the host would wait for the values: there it does nothing.
        """
        if torch.compiler.is_compiling():
            return self
        versions = self._versions()
        if self._checked != versions and self.device.type == "cpu":
            self._check_all()
            object.__setattr__(self, "_checked", versions)
        return self

    def with_tensors(self, offsets: Tensor, columns: Tensor, values: Tensor) -> Bag:
        """A bag of entries of this one: if this one has been checked, it needs no check."""
        bag = Bag(offsets, columns, values, self.num_columns)
        if self._checked is not None:
            object.__setattr__(bag, "_checked", bag._versions())
        return bag

    def _versions(self) -> tuple[int, int]:
        # Tensors of `torch.inference_mode()` count no versions.
        offsets = 0 if self.offsets.is_inference() else self.offsets._version
        return offsets, 0 if self.columns.is_inference() else self.columns._version

    def _check_all(self) -> None:
        check_ids("columns", self.columns, None)
        if self.columns.dim() != 1 or self.values.shape != self.columns.shape:
            raise HeadtailError(
                "`columns` and `values` must have one number for each entry, but have the shapes "
                f"{list(self.columns.shape)} and {list(self.values.shape)}. Make them equal."
            )
        if not self.values.is_floating_point():
            raise HeadtailError(
                f"`values` must be float32, but got {self.values.dtype}. Write `values.float()`."
            )
        check_offsets("offsets", self.offsets, len(self.columns))
        check_inside("columns", self.columns, self.num_columns, "columns")

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.columns.device

    def rows(self, ids: Int64[Tensor, " k"]) -> Bag:
        """These rows, in this order."""
        self.check()
        check_inside("ids", ids, len(self), "rows of the bag")
        kernels = gather_kernels(self.device, len(ids))
        if kernels is None:
            picked = pick(self.offsets, ids)
            columns = self.columns[picked.values]
            return self.with_tensors(picked.offsets, columns, self.values[picked.values])
        offsets = offsets_of_rows(self.offsets, ids)
        columns = self.columns.new_empty(int(offsets[-1]))
        values = self.values.new_empty(int(offsets[-1]))
        arrays = (self.offsets, self.columns, self.values, ids, offsets, columns, values)
        kernels.take(*(array.numpy() for array in arrays))
        return self.with_tensors(offsets, columns, values)

    def to_dense(self) -> Float32[Tensor, "n D"]:
        """`[n, D]`; repeated columns are summed."""
        self.check()
        every_row = torch.arange(len(self), device=self.device)
        row = every_row.repeat_interleave(self.offsets.diff(), output_size=len(self.columns))
        dense = torch.zeros(len(self), self.num_columns, device=self.device)
        return dense.index_put_((row, self.columns.long()), self.values, accumulate=True)

    def to(self, device: torch.device | str) -> Bag:
        """The same rows on another device."""
        tensors = (self.offsets, self.columns, self.values)
        return self.check().with_tensors(*(tensor.to(device) for tensor in tensors))


@dataclass(frozen=True, eq=False)
class Picked:
    """Rows of a bag that stay where they are, so that a batch copies no features.

    Attributes:
        bag: all rows.
        ids: `[n]` the rows picked.
        most: the most entries that n rows can have, where it is known.

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
        """The rows one after the other, as a bag."""
        return self.bag.rows(self.ids)


def offsets_of_rows(
    offsets: Int64[Tensor, " n1"], ids: Int64[Tensor, " k"]
) -> Int64[Tensor, " k1"]:
    """`[k + 1]` offsets of these rows, once they follow one another."""
    new = torch.zeros(len(ids) + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(offsets[ids + 1] - offsets[ids], 0, out=new[1:])
    return new


def pick(offsets: Int64[Tensor, " n1"], ids: Int64[Tensor, " k"]) -> Ragged:
    """Positions of the entries of these rows, one row after the other, and the new offsets."""
    new = offsets_of_rows(offsets, ids)
    total = int(new[-1])
    shift = offsets[ids] - new[:-1]
    positions = torch.arange(total, device=offsets.device)
    return Ragged(positions + shift.repeat_interleave(new.diff(), output_size=total), new)


def ragged_rows(ragged: Ragged, ids: Int64[Tensor, " k"]) -> Ragged:
    """These rows of a ragged array."""
    picked = pick(ragged.offsets, ids)
    return Ragged(ragged.values[picked.values], picked.offsets)


def join_ragged(first: Ragged, second: Ragged) -> Ragged:
    """The rows of the first array, then those of the second."""
    values = torch.cat([first.values, second.values])
    return Ragged(values, _join_offsets(first.offsets, second.offsets))


def join_bags(first: Bag, second: Bag) -> Bag:
    """The rows of the first bag, then those of the second."""
    columns = torch.cat([first.columns, second.columns])
    values = torch.cat([first.values, second.values])
    offsets = _join_offsets(first.offsets, second.offsets)
    return Bag(offsets, columns, values, first.num_columns)


def _join_offsets(first: Int64[Tensor, " n1"], second: Int64[Tensor, " m1"]) -> Tensor:
    return torch.cat([first, second[1:] + first[-1]])
