"""Batches over sequences: windows of shuffled sequences, in which many positions are predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor

from headtail.data.bag import pick
from headtail.data.batches import TrainingBatch, own_part
from headtail.data.histories import Histories
from headtail.data.points import Points
from headtail.errors import HeadtailError, check_count


@final
class SequenceBatches:
    """The order of targets in each epoch, and the batches of sequences they make.

    A sequence is cut into windows of at most `length` items, from its end, so that every target is
    in one window. Windows are shuffled; the targets of one after the other are dealt out into
    batches of equal size. A window whose targets fall into two batches is in both, and predicts
    some in each. Targets left over at the end of an epoch, less than a batch, wait for another
    epoch's shuffle. Targets without a known item before them are left out.

    Args:
        points: histories with one label each.
        size: targets per batch.
        seed: decides the order; the same (seed, epoch) gives the same order, so training can resume
            anywhere.
        length: most items in a window.
        among: `[k]` ids of the points to use; None for all.
        part: (r, n) for the r-th of n parts of every batch, those of n ranks. A window that is cut
            there is in both parts, as one that is cut between batches is in both.

    Attributes:
        windows: a history for each window, up to its last target.
        offsets: `[w + 1]` where each window's targets begin.
        window_of: `[t]` the window of each target.
        place: `[t]` the position in it that predicts the target.
        label: `[t]` the target.

    >>> from headtail.core.targets import Ragged
    >>> items, ends = torch.tensor([7, 5, 7, 9]).int(), torch.tensor([1, 2, 3])
    >>> histories = Histories(items, torch.tensor([0, 4]), torch.zeros(3).long(), ends, 10, 12)
    >>> points = Points(histories, Ragged(items[1:], torch.arange(4)), num_labels=12)
    >>> batches = SequenceBatches(points, size=3, seed=0, length=4)
    >>> batch = batches.take(next(batches.order(epoch=0)))
    >>> batch.features, batch.row, batch.target
    (tensor([[7, 5, 7]], dtype=torch.int32), tensor([0, 1, 2]), tensor([5, 7, 9]))
    """

    whole_points = False

    def __init__(
        self,
        points: Points,
        size: int,
        seed: int,
        *,
        length: int,
        among: Int64[Tensor, " k"] | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        check_count("size", size)
        histories = points.features
        assert isinstance(histories, Histories), "other points have no order"
        self.points = points
        self.seed = seed
        self.length = length
        used = torch.arange(len(points)) if among is None else among
        used = used[points.labels.offsets.diff()[used] > 0]
        row = histories.row[used]
        end = histories.end[used]
        order = end.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        used, row, end = used[order], row[order], end[order]
        last = _last_of_row(row, end) if len(row) else end
        last = last - (last - end) // length * length  # of the window
        start = (last - length).clamp(min=0)
        begin = histories.offsets[row]
        known = F.pad((histories.items >= 0).cumsum(0), (1, 0))
        place = known[begin + end] - known[begin + start] - 1
        there = place >= 0
        if not bool(there.any()):
            raise HeadtailError(
                "No training point has both a label and an item before it, so there is nothing to "
                "learn."
            )
        both = torch.stack([row[there], last[there]])
        windows, self.window_of = both.unique_consecutive(dim=1, return_inverse=True)
        self.windows = replace(histories, row=windows[0], end=windows[1])
        self.place = place[there]
        self.label = points.labels.values[points.labels.offsets[used[there]]].long()
        self.offsets = F.pad(torch.bincount(self.window_of).cumsum(0), (1, 0))
        self.ids = torch.arange(len(self.label))
        self.size = min(size, len(self.ids))
        self.own = own_part(self.size, part)

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return len(self.ids) // self.size

    def order(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " own"]]:
        """The targets of each batch of an epoch, from batch `start` on."""
        yield from self.shuffled(epoch)[start * self.size :].view(-1, self.size)[:, self.own]

    def shuffled(self, epoch: int) -> Int64[Tensor, " all"]:
        """The targets of all batches of an epoch, one batch after the other."""
        return pick(self.offsets, self._windows(epoch)).values[: self.steps * self.size]

    def take(self, ids: Int64[Tensor, " own"]) -> TrainingBatch:
        """The batch of these targets: their windows, as wide as the longest."""
        window, where = self.window_of[ids].unique_consecutive(return_inverse=True)
        items = self.windows.rows(window).window(self.length)
        width = int((items >= 0).sum(1).max())
        row = where * width + self.place[ids]
        return TrainingBatch(items[:, :width], row, self.label[ids])

    def most_windows(self, epochs: int) -> int:
        """The most windows that a batch of these epochs has."""
        most = 0
        begins = torch.arange(self.steps) * self.size
        for epoch in range(epochs):
            ends = self.offsets.diff()[self._windows(epoch)].cumsum(0)
            first = torch.searchsorted(ends, begins, right=True)
            last = torch.searchsorted(ends, begins + self.size - 1, right=True)
            most = max(most, int((last - first).max()) + 1)
        return most

    def _windows(self, epoch: int) -> Int64[Tensor, " w"]:
        """All windows in the order of an epoch."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(len(self.windows), generator=generator)


def _last_of_row(row: Int64[Tensor, " t"], end: Int64[Tensor, " t"]) -> Int64[Tensor, " t"]:
    """The largest end of each one's row; both are sorted."""
    _, where, counts = row.unique_consecutive(return_inverse=True, return_counts=True)
    return end[counts.cumsum(0) - 1][where]
