"""Training data in the memory of a GPU, where batches are assembled from ids."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, final

import torch
from torch import Tensor

from headtail.core.targets import IGNORE_INDEX, Ragged
from headtail.data.bag import Bag, Picked
from headtail.data.batches import Batches, TrainingBatch
from headtail.data.points import Points
from headtail.data.sequence_batches import SequenceBatches
from headtail.training.resident_sequences import ResidentSequences
from headtail.training.step import Learner, TrainingStep

STEPS_AHEAD = 256
"""Steps whose points and targets are looked up together."""


class ResidentSize(NamedTuple):
    """Bytes that resident data takes: its features, and the rest."""

    features: int
    rest: int


def is_gathered(points: Points, dense_below: int) -> bool:
    """Whether features stay sparse, and rows are gathered from the table."""
    return isinstance(points.features, Bag) and points.num_features > dense_below


def resident_size(points: Points, whole_points: bool, dense_below: int) -> ResidentSize:
    """Bytes that these points will take on a GPU."""
    n = len(points)
    features = points.features
    if isinstance(features, Bag) and is_gathered(points, dense_below):
        feature_bytes = 8 * n + 8 * len(features.columns)
    else:
        number = features.element_size() if isinstance(features, Tensor) else 4
        feature_bytes = n * points.num_features * number
    most_labels = int(points.labels.offsets.diff().max()) if whole_points else 0
    label_bytes = 8 * n * most_labels if whole_points else 8 * points.num_pairs
    return ResidentSize(feature_bytes, label_bytes + 8 * points.num_pairs)


@final
class Resident:
    """Points that a GPU can read, so that a batch is just their ids and its shapes never change.

    Args:
        batches: the training points, and what a batch of them holds.
        device: the GPU.
        dense_below: up to this many features, sparse features are made dense.
        pinned: keep sparse features in the host's pinned memory, from where kernels read what they
            need.
    """

    def __init__(
        self, batches: Batches, device: torch.device, *, dense_below: int, pinned: bool = False
    ) -> None:
        points = batches.points
        self.device = device
        self.point_of = batches.point_of.to(device)
        self.whole_points = batches.whole_points
        self.bag: Bag | None = None
        self.dense: Tensor | None = None
        features = points.features
        assert isinstance(features, Bag | Tensor), "image files are streamed"
        if isinstance(features, Bag) and is_gathered(points, dense_below):
            lengths = features.offsets.diff()
            if not self.whole_points:
                lengths = lengths[batches.point_of]  # a point counts once per pair
            self.most = int(lengths.topk(min(batches.size, len(lengths))).values.sum())
            self.bag = _pinned(features) if pinned else features.to(device)
        else:
            dense = features.to(device).to_dense() if isinstance(features, Bag) else features
            self.dense = dense.to(device).contiguous()
        values = points.labels.values.to(device, torch.int64)
        labels = Ragged(values, points.labels.offsets.to(device))
        self.target = pad_labels(labels) if self.whole_points else values

    def look_up(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The points and targets of these pairs, or points."""
        ids = ids.to(self.device, non_blocking=True)
        points = ids if self.whole_points else self.point_of[ids]
        return points, self.target[ids]

    def take(self, points: Tensor, target: Tensor) -> TrainingBatch:
        """The batch of these points and targets."""
        if self.bag is not None:
            return TrainingBatch(Picked(self.bag, points, self.most), None, target)
        assert self.dense is not None
        return TrainingBatch(self.dense[points], None, target)


@final
class ResidentOrder:
    """The points and targets of each batch, epoch by epoch.

    They are looked up many steps at a time, so that a step only copies its own, and the next epoch
    is shuffled while a GPU is busy with this one.

    Args:
        resident: where to look up.
        batches: the order of ids.
        epochs: how many there will be.

    Attributes:
        ahead: the epoch that is being shuffled ahead, if any, and its ids.
    """

    def __init__(
        self,
        resident: Resident | ResidentSequences,
        batches: Batches | SequenceBatches,
        epochs: int,
    ) -> None:
        self.resident = resident
        self.batches = batches
        self.epochs = epochs
        self.ahead: dict[int, Future[Tensor]] = {}
        self._thread = ThreadPoolExecutor(1)

    def __call__(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Points and targets from step `start` on."""
        shuffled = self.ahead.pop(epoch, None) or self._shuffle(epoch)
        if epoch + 1 < self.epochs:
            self.ahead = {epoch + 1: self._shuffle(epoch + 1)}
        size = self.batches.size
        ids = shuffled.result()[start * size :].to(self.resident.device)
        for some in ids.view(-1, size).split(STEPS_AHEAD):
            yield from zip(*self.resident.look_up(some), strict=True)

    def _shuffle(self, epoch: int) -> Future[Tensor]:
        return self._thread.submit(self.batches.shuffled, epoch)


@final
class ResidentStep(TrainingStep):
    """Assembles the batch on the GPU and runs eagerly."""

    def __init__(self, learner: Learner, resident: Resident | ResidentSequences) -> None:
        self.learner = learner
        self.resident = resident
        self._order = ResidentOrder(resident, learner.batches, learner.run.epochs)

    def order(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Points and targets of each batch."""
        return self._order(epoch, start)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Take the step of these points and targets."""
        return self.learner.learn(self.learner.model(self.resident.take(*batch)))


def pad_labels(labels: Ragged) -> Tensor:
    """`[n, k]` labels, padded with −100."""
    lengths = labels.offsets.diff()
    device = lengths.device
    row = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
    first = labels.offsets[:-1].repeat_interleave(lengths)
    column = torch.arange(len(labels.values), device=device) - first
    shape = (len(lengths), max(1, int(lengths.max())))
    padded = torch.full(shape, IGNORE_INDEX, dtype=torch.int64, device=device)
    padded[row, column] = labels.values
    return padded


def _pinned(bag: Bag) -> Bag:
    tensors = (bag.offsets, bag.columns, bag.values)
    return bag.check().with_tensors(*(tensor.pin_memory() for tensor in tensors))
