"""Batches over shuffled (point, label) pairs, without a copy of the features for each label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from headtail.core.targets import Target
from headtail.data.bag import Bag, Picked, ragged_rows
from headtail.data.histories import Histories
from headtail.data.image_files import ImageFiles
from headtail.data.points import Features, Points
from headtail.errors import HeadtailError, Setting, check_count

WORTH_SHARING = 1 / 32
"""The share of encodings that must be saved for sharing to pay: finding equal points and adding up
their gradients is not free.
"""


class TrainingBatch(NamedTuple):
    """What a model computes its loss on.

    Attributes:
        features: of the batch's different points.
        row: `[b]` the point that each target belongs to; None where target i belongs to point i.
        target: `[b]` labels, or all labels of each point, ragged or padded.
    """

    features: Features | Picked
    row: Int[Tensor, " b"] | None
    target: Target


class Batches:
    """The order of pairs (or whole points) in each epoch, and the batches they make.

    The multi-label example (x, {y₁, …, y_t}) counts as t examples (x, y₁), …, (x, y_t), as in the
    paper. Pairs refer to points; features are gathered per batch. A point that has several pairs in
    a batch is encoded once, unless so few are expected that looking for them costs more than it
    saves. Pairs left over at the end of an epoch, less than a batch, wait for another epoch's
    shuffle.

    Args:
        points: what to learn from.
        size: pairs per batch.
        seed: decides the order; the same (seed, epoch) gives the same order, so training can resume
            anywhere.
        among: `[k]` ids of the points to use; None for all.
        whole_points: a batch holds about `size` pairs, as whole points with all their labels.
        part: (r, n) for the r-th of n parts of every batch, those of n ranks; all have as many, or
            one more.

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
        part: tuple[int, int] = (0, 1),
    ) -> None:
        check_count("size", size)
        points = points.as_bags()
        lengths = points.labels.offsets.diff()
        used = torch.full((len(points),), among is None)
        if among is not None:
            used[among] = True
        used &= lengths > 0  # nothing can be learnt from a point without labels
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
        self.own = own_part(self.size, part)
        self.shares = _shared_pairs(lengths[used], self.size) >= WORTH_SHARING

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return len(self.ids) // self.size

    def order(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " own"]]:
        """The pairs (or points) of each batch of an epoch, from batch `start` on."""
        yield from self.shuffled(epoch)[start * self.size :].view(-1, self.size)[:, self.own]

    def shuffled(self, epoch: int) -> Int64[Tensor, " all"]:
        """The pairs (or points) of all batches of an epoch, one batch after the other."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(self.ids), generator=generator)
        return self.ids[order[: self.steps * self.size]]

    def take(self, ids: Int64[Tensor, " own"]) -> TrainingBatch:
        """The batch of these pairs, or points."""
        if self.whole_points:
            return TrainingBatch(self._features(ids), None, ragged_rows(self.points.labels, ids))
        points = self.point_of[ids]
        target = self.points.labels.values[ids].long()
        row = None
        if self.shares:
            different, where = torch.unique(points, return_inverse=True)
            if len(different) < len(points):
                points = different
                row = where
        return TrainingBatch(self._features(points), row, target)

    def _features(self, points: Tensor) -> Picked | Tensor:
        features = self.points.features
        assert not isinstance(features, Histories), "they are bags here"
        assert not isinstance(features, ImageFiles), "image files are streamed, not taken"
        return Picked(features, points) if isinstance(features, Bag) else features[points]


def own_part(size: int, part: tuple[int, int]) -> slice:
    """The part of a batch that one of several ranks takes.

    >>> [own_part(8, (rank, 3)) for rank in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """
    rank, ranks = part
    if size < ranks:
        raise HeadtailError(
            f"A batch has {size:,} examples, which leaves some of the {ranks:,} ranks without one. "
            "Use fewer ranks, or a larger ",
            Setting("batch"),
            ".",
        )
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def _shared_pairs(lengths: Int64[Tensor, " used"], size: int) -> float:
    """The expected share of a batch's pairs that have another pair's point.

    Two of P pairs share a point with probability Σ n(n−1) / P(P−1), over points with n pairs each.
    """
    pairs = int(lengths.sum())
    meet = float((lengths * (lengths - 1)).sum()) / max(1, pairs * (pairs - 1))
    return meet * (size - 1) / 2
