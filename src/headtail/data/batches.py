"""Batches over shuffled (point, label) pairs, without copying features once a label."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.image_files import ImageFiles
from headtail.data.points import Bag, Picked, Points, ragged_rows
from headtail.encoders.model import Batch
from headtail.errors import HeadtailError, check_count

WORTH_SHARING = 1 / 32
"""The share of encodings that must be saved for it to pay: finding them and adding up their
gradients is not free.
"""


class Batches:
    """An order of pairs (or whole points) for each epoch, and the batch that any part of it makes.

    The multi-label example (x, {y₁, …, y_t}) counts as t examples (x, y₁), …, (x, y_t), as in the
    paper. Pairs refer to points; features are gathered a batch at a time, and a point whose pairs
    meet in a batch is encoded once (unless so few are expected to meet that looking for them costs
    more than it saves). What is left over at the end of an epoch, less than a batch, waits for
    another epoch's shuffle.

    Args:
        points: what to learn from.
        size: pairs in a batch.
        seed: decides the order; the same (seed, epoch) gives the same order, so training can resume
            anywhere.
        among: `[k]` ids of the points to use; None for all.
        whole_points: a batch holds about `size` pairs, as whole points with all their labels.

    >>> from headtail.data.points import Points
    >>> points = Points(torch.eye(3), Ragged.from_lists([[0, 1], [1], []]), num_labels=2)
    >>> batches = Batches(points, size=3, seed=0)
    >>> batch = batches.take(next(batches.order(epoch=0)))
    >>> batch.features.shape, sorted(batch.target.tolist())
    (torch.Size([2, 3]), [0, 1, 1])
    """

    def __init__(
        self,
        points: Points,
        size: int,
        seed: int,
        *,
        among: Int64[Tensor, " k"] | None = None,
        whole_points: bool = False,
    ) -> None:
        check_count("size", size)
        lengths = points.labels.offsets.diff()
        used = (
            torch.ones(len(points), dtype=torch.bool)
            if among is None
            else torch.zeros(len(points), dtype=torch.bool)
        )
        if among is not None:
            used[among] = True
        used &= lengths > 0  # a point without labels teaches nothing
        self.points = points
        self.seed = seed
        self.whole_points = whole_points
        self.point_of = torch.arange(len(points)).repeat_interleave(lengths)  # [pairs]
        pairs = used[self.point_of].nonzero().squeeze(1)
        if len(pairs) == 0:
            raise HeadtailError(
                "The training points have no labels at all, so there is nothing to learn."
            )
        self.ids = used.nonzero().squeeze(1) if whole_points else pairs
        size = max(1, round(size * len(self.ids) / len(pairs))) if whole_points else size
        self.size = min(size, len(self.ids))
        # The expected share of pairs whose point is in the batch already: two share a point with
        # probability Σ n(n−1) / P(P−1).
        meet = float((lengths * (lengths - 1))[used].sum()) / max(1, len(pairs) * (len(pairs) - 1))
        self.shares = meet * (self.size - 1) / 2 >= WORTH_SHARING

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return len(self.ids) // self.size

    def order(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " size"]]:
        """The pairs (or points) of each batch of an epoch, from batch `start` on."""
        yield from self.shuffled(epoch)[start * self.size :].view(-1, self.size)

    def shuffled(self, epoch: int) -> Int64[Tensor, " all"]:
        """Those of all batches of an epoch, one after the other."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return self.ids[
            torch.randperm(len(self.ids), generator=generator)[: self.steps * self.size]
        ]

    def take(self, ids: Int64[Tensor, " size"]) -> Batch:
        """The batch of these pairs, or points."""
        if self.whole_points:
            return Batch(self._features(ids), None, ragged_rows(self.points.labels, ids))
        points = self.point_of[ids]
        target = self.points.labels.values[ids].long()
        row = None
        if self.shares:
            different, where = torch.unique(points, return_inverse=True)
            if len(different) < len(points):
                points = different
                row = where
        return Batch(self._features(points), row, target)

    def _features(self, points: Tensor) -> Picked | Tensor:
        features = self.points.features
        # these are decoded ahead, not one batch when its turn comes
        assert not isinstance(features, ImageFiles)
        return Picked(features, points) if isinstance(features, Bag) else features[points]
