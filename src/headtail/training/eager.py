"""Training steps that gather each batch on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import Picked
from headtail.data.batches import TrainingBatch
from headtail.training.step import Learner, TrainingStep


@final
class EagerStep(TrainingStep):
    """Gathers the batch on the host, copies it to the device, and runs eagerly."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def order(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Ids of the pairs, or points, of each batch."""
        return self.learner.batches.order(epoch, start)

    def __call__(self, ids: Tensor) -> Tensor:
        """Take the step of these pairs, or points."""
        learner = self.learner
        batch = learner.batches.take(ids)
        if learner.device.type != "cpu":
            batch = _on(learner.device, batch)
        return learner.learn(learner.model(batch))


def _on(device: torch.device, batch: TrainingBatch) -> TrainingBatch:
    features = batch.features.gathered() if isinstance(batch.features, Picked) else batch.features
    row = None if batch.row is None else batch.row.to(device)
    target = batch.target
    if isinstance(target, Ragged):
        target = Ragged(target.values.to(device).long(), target.offsets.to(device))
    elif isinstance(target, Tensor):
        target = target.to(device)
    return TrainingBatch(features.to(device), row, target)
