"""Batches over shuffled (point, label) pairs, without copying features once a label."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.points import Bag, Points, ragged_rows
from headtail.errors import HeadtailError, check_count
from headtail.models.model import Batch


class Batches:
    """An order of pairs (or whole points) for each epoch, and the batch that any part of it makes.

    The multi-label example (x, {y₁, …, y_t}) counts as t examples (x, y₁), …, (x, y_t), as in the paper. Pairs refer to points;
    features are gathered a batch at a time, and a point whose pairs meet in a batch is encoded once. What is left over at the
    end of an epoch, less than a batch, waits for another epoch's shuffle.

    Args:
        points: what to learn from.
        size: pairs in a batch.
        seed: decides the order; the same (seed, epoch) gives the same order, so training can resume anywhere.
        whole_points: a batch holds about `size` pairs, as whole points with all their labels.

    >>> points = Points(torch.eye(3), Ragged.from_lists([[0, 1], [1], []]), num_labels=2)
    >>> batches = Batches(points, size=3, seed=0)
    >>> batch = batches.take(next(batches.order(epoch=0)))
    >>> batch.features.shape, sorted(batch.target.tolist())
    (torch.Size([2, 3]), [0, 1, 1])
    """

    def __init__(self, points: Points, size: int, seed: int, *, whole_points: bool = False) -> None:
        check_count("size", size)
        if points.num_pairs == 0:
            raise HeadtailError("The training points have no labels at all, so there is nothing to learn.")
        lengths = points.labels.offsets.diff()
        self.points, self.seed, self.whole_points = points, seed, whole_points
        if whole_points:
            self.items = lengths.nonzero().squeeze(1)  # a point without labels teaches nothing
            size = max(1, round(size * len(self.items) / points.num_pairs))
        else:
            self.items = torch.arange(len(points)).repeat_interleave(lengths)  # [pairs] the point of each
        self.size = min(size, len(self.items))
        self.one_each = points.num_pairs == len(points)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return len(self.items) // self.size

    def order(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " size"]]:
        """What each batch of an epoch holds, from batch `start` on: places in `items`."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.items), generator=generator)
        for step in range(start, self.steps):
            yield order[step * self.size : (step + 1) * self.size]

    def take(self, places: Int64[Tensor, " size"]) -> Batch:
        """The batch that holds these."""
        points = self.items[places]
        if self.whole_points:
            return Batch(self._features(points), None, ragged_rows(self.points.labels, points))
        target, row = self.points.labels.values[places].long(), None
        if not self.one_each:
            different, where = torch.unique(points, return_inverse=True)
            if len(different) < len(points):
                points, row = different, where
        return Batch(self._features(points), row, target)

    def _features(self, points: Tensor) -> Bag | Tensor:
        features = self.points.features
        return features.rows(points) if isinstance(features, Bag) else features[points]
