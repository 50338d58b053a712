"""Training steps on image files, which worker processes decode ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from headtail.data.bag import ragged_rows
from headtail.data.batches import Batches, TrainingBatch
from headtail.training.resident import pad_labels
from headtail.training.step import Learner, TrainingStep


@final
class StreamedStep(TrainingStep):
    """Takes the step of images that were decoded while earlier steps ran.

    The order of an epoch follows from its number, so the images of later steps are known. All
    randomness in an image follows from (seed, epoch, image) alone: a resumed run sees the same.
    """

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner.batches, Batches), "images are not sequences"
        self.learner = learner
        self._batches = learner.batches

    def order(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and targets of each batch; decoding starts with the first that is asked for."""
        batches = self._batches
        labels = batches.points.labels
        for ids, images in zip(
            batches.order(epoch, start), self._decoded(epoch, start), strict=False
        ):
            whole = batches.whole_points
            target = pad_labels(ragged_rows(labels, ids)) if whole else labels.values[ids].long()
            yield images, target

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Take the step of these images and targets."""
        learner = self.learner
        images, target = batch
        features = images.to(learner.device, non_blocking=True)
        return learner.learn(
            learner.model(TrainingBatch(features, None, target.to(learner.device)))
        )

    def _decoded(self, epoch: int, start: int) -> Iterator[Tensor]:
        batches = self._batches
        images = (
            ids if batches.whole_points else batches.point_of[ids]
            for ids in batches.order(epoch, start)
        )
        return batches.points.features.stream(  # pyright: ignore
            images,
            train=self.learner.run.augment,
            seed=(batches.seed * 1_000_003 + epoch) % 2**63,
            workers=torch.get_num_threads(),
        )
