"""What a training step works on, and the interface of all ways to take one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headtail.data.batches import Batches
from headtail.data.sequence_batches import SequenceBatches
from headtail.encoders import Model
from headtail.losses.fused import backward
from headtail.rows.clipping import clip_grad_norm_
from headtail.rows.optimizers import DenseSGD
from headtail.rows.row_optimizer import RowOptimizer
from headtail.training.config import SettledRun


@dataclass(frozen=True, eq=False)
class Learner:
    """A model, its optimiser and its batches.

    Attributes:
        run: the settings.
        model: on its device.
        optimiser: over all of the model's parameters.
        batches: the order of an epoch, and the batch that any part of it makes.
        device: where the model is.
        one: a tensor there that holds 1, for backward passes that are captured.
    """

    run: SettledRun
    model: Model
    optimiser: RowOptimizer | DenseSGD
    batches: Batches | SequenceBatches
    device: torch.device
    one: Tensor

    def learn(self, loss: Tensor) -> Tensor:
        """Take the gradients of a loss and update the model; returns the loss without its graph."""
        self.optimiser.zero_grad(set_to_none=True)
        backward(loss, self.one)
        if self.run.clip:
            clip_grad_norm_(self.model.parameters(), self.run.clip)
        # Before the updates: on a GPU, the value would otherwise wait for them.
        value = loss.detach().double()
        self.optimiser.advance()
        return value


class TrainingStep(ABC):
    """One way to take training steps."""

    @abstractmethod
    def order(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from step `start` on, in the form that a call takes."""

    @abstractmethod
    def __call__(self, batch: Any) -> Tensor:
        """Take the step of a batch and return its loss, which the next step may overwrite."""
