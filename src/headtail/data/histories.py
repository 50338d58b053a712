"""Histories: what each point of a sequence has before it, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from headtail.core.offsets import check_offsets
from headtail.data.bag import Bag
from headtail.errors import HeadtailError, check_ids, check_inside

AT_ONCE = 1 << 20
"""Entries of bags that are computed at a time."""
CHECKED_AT_ONCE = 1 << 16
"""Points whose positions are checked at a time: few enough to stay in cache."""
MOST_ITEMS = 2**31
"""Bags hold items as int32."""


@dataclass(frozen=True, eq=False)
class Histories:
    """Points of sequences: each sees the items of one sequence before a position.

    Sequences are stored once, however many points they have: point i sees the items of sequence
    `row[i]` before position `end[i]`, where its label is.

    Attributes:
        items: `[p]` int32 item ids one sequence after the other, −1 where unknown.
        offsets: `[s + 1]` where sequences begin in `items`.
        row: `[n]` the sequence of each point.
        end: `[n]` how many items of its sequence are before each point.
        last: how many of these a bag looks at; encoders that read the order have a length of their
            own.
        num_columns: how many items there are.

    >>> items = torch.tensor([7, 5, 7, 9]).int()
    >>> histories = Histories(
    ...     items, torch.tensor([0, 4]), torch.tensor([0, 0]), torch.tensor([1, 3]), 10, 12
    ... )
    >>> histories.window(2)
    tensor([[ 7, -1],
            [ 5,  7]], dtype=torch.int32)
    >>> histories.bag().values
    tensor([1.0000, 0.5000, 1.3333])
    """

    items: Int[Tensor, " p"]
    offsets: Int64[Tensor, " s1"]
    row: Int64[Tensor, " n"]
    end: Int64[Tensor, " n"]
    last: int
    num_columns: int

    def __post_init__(self) -> None:
        if len(self.row) != len(self.end):
            raise HeadtailError(
                f"`row` has {len(self.row):,} points, but `end` has {len(self.end):,}. Make them "
                "equal."
            )

    def __len__(self) -> int:
        return len(self.row)

    def check(self) -> None:
        """Refuse items, sequences and positions that are not there; `Points.check` calls it."""
        if self.num_columns > MOST_ITEMS:
            raise HeadtailError(
                f"`num_columns` must be at most {MOST_ITEMS:,}, but got {self.num_columns:,}."
            )
        for name in ("items", "row", "end"):
            check_ids(name, getattr(self, name), None)
        check_offsets("offsets", self.offsets, len(self.items))
        check_inside("items", self.items, self.num_columns, "item ids", low=-1)
        check_inside("row", self.row, len(self.offsets) - 1, "sequences")
        lengths = self.offsets.diff()
        parts = zip(self.row.split(CHECKED_AT_ONCE), self.end.split(CHECKED_AT_ONCE), strict=True)
        for row, end in parts:
            after = lengths.index_select(0, row) - end  # items at and after each point
            if len(end) and min(int(end.min()), int(after.min())) < 0:
                raise HeadtailError(
                    "`end` must be at most the number of items of its sequence and at least 0, "
                    "but some numbers are not. Count positions within each sequence."
                )

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.items.device

    @property
    def num_entries(self) -> int:
        """Items that bags look at, over all points."""
        return int(self.end.clamp(max=self.last).sum())

    def rows(self, ids: Int64[Tensor, " k"]) -> Histories:
        """These points, in this order, of the same sequences."""
        return replace(self, row=self.row[ids], end=self.end[ids])

    def to(self, device: torch.device | str) -> Histories:
        """The same points on another device, with all sequences."""
        tensors = ("items", "offsets", "row", "end")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})

    def window(self, length: int) -> Int[Tensor, "n T"]:
        """`[n, length]` the latest known items of each point in order, then −1 up to the length."""
        start = (self.end - length).clamp(min=0)
        steps = torch.arange(length, device=self.device)
        inside = steps < (self.end - start)[:, None]
        places = (self.offsets[self.row] + start)[:, None] + steps
        if not len(self.items):
            return self.items.new_full(places.shape, -1)
        items = self.items[places.clamp(max=len(self.items) - 1)].masked_fill(~inside, -1)
        if not bool((inside & (items < 0)).any()):
            return items
        # Unknown items are left out: those behind them move up.
        return items.gather(1, (items < 0).to(torch.int8).argsort(dim=1, stable=True))

    def bag(self) -> Bag:
        """The last items of each point as sparse features: the item i steps back has the value 1/i,
        summed where an item repeats; unknown items are left out.
        """
        ids = self.items.cpu().numpy()
        ends = self.end.cpu().numpy()
        targets = self.offsets.cpu().numpy()[self.row.cpu().numpy()] + ends
        # No history is longer than the longest, however many items may be looked at.
        last = min(self.last, max(1, int(ends.max(initial=0))))
        blocks = -(-len(targets) * last // AT_ONCE) or 1
        parts = [
            recent(ids, targets[block], ends[block], last)
            for block in np.array_split(np.arange(len(targets)), blocks)
        ]
        lengths, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        offsets = torch.from_numpy(np.r_[0, np.cumsum(lengths)])
        bag = Bag(offsets, torch.from_numpy(columns), torch.from_numpy(values), self.num_columns)
        return bag.to(self.device)


def join_histories(first: Histories, second: Histories) -> Histories:
    """The points of the first, then those of the second, of the same sequences."""
    assert first.items is second.items, "parts of one source share its sequences"
    row = torch.cat([first.row, second.row])
    return replace(first, row=row, end=torch.cat([first.end, second.end]))


def recent(
    ids: np.ndarray, targets: np.ndarray, before: np.ndarray, last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bags of the items before each target, weighted by how recent they are.

    Args:
        ids: `[p]` items one sequence after the other, −1 where unknown.
        targets: `[t]` places of the targets in `ids`, or behind its end.
        before: `[t]` how many items of its sequence are before each.
        last: how many of these are looked at.

    Returns:
        `[t]` entries per bag; `[nnz]` columns, ascending within a bag; `[nnz]` values.

    >>> recent(np.array([7, 5, 7, 9]), np.array([3]), np.array([3]), last=3)
    (array([2]), array([5, 7], dtype=int32), array([0.5      , 1.3333334], dtype=float32))
    """
    steps = np.arange(1, last + 1)
    looked_at = steps <= before[:, None]
    columns = np.full(looked_at.shape, -1, np.int32)
    columns[looked_at] = ids[(targets[:, None] - steps)[looked_at]]
    order = np.argsort(columns, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    weights = (1 / steps)[order]
    first = columns >= 0
    first[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    starts = np.flatnonzero(first[columns >= 0])
    values = np.add.reduceat(weights[columns >= 0], starts) if len(starts) else np.empty(0)
    return first.sum(axis=1), columns[first], values.astype(np.float32)
