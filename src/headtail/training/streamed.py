"""Training steps on picture files, which worker processes decode ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headtail.data.points import ragged_rows
from headtail.encoders.model import Batch
from headtail.training.captured import pad_labels

if TYPE_CHECKING:
    from headtail.training.trainer import Trainer


class Streamed:
    """A step of this trainer on the pictures that come next.

    The order of an epoch follows from its number, so the pictures of later steps are known, and
    decoded while this one is taken. What is random in a picture follows from (seed, epoch, picture)
    alone: a run that is resumed sees the same.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.batches = trainer.batches
        self.at = (-1, -1)

    def __call__(self, ids: Tensor) -> Tensor:
        """Take the step of these pairs, or points."""
        state = self.trainer.state
        device = self.trainer.device
        if self.at != (state.epoch, state.step):
            self._begin(state.epoch, state.step)
        self.at = state.epoch, state.step + 1
        labels = self.batches.points.labels
        whole = self.batches.whole_points
        target = pad_labels(ragged_rows(labels, ids)) if whole else labels.values[ids].long()
        batch = Batch(next(self.pictures).to(device, non_blocking=True), None, target.to(device))
        return self.trainer.learn(self.trainer.model(batch))

    def _begin(self, epoch: int, step: int) -> None:
        """Decode from this step of this epoch on."""
        batches = self.batches
        workers = torch.get_num_threads()
        augment = self.trainer.run.augment
        of_pictures = (
            ids if batches.whole_points else batches.point_of[ids]
            for ids in batches.order(epoch, step)
        )
        seed = (batches.seed * 1_000_003 + epoch) % 2**63
        self.pictures = batches.points.features.stream(
            of_pictures, train=augment, seed=seed, workers=workers
        )  # pyright: ignore
