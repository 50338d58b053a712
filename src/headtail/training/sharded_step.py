"""Training steps of one of several ranks, which share the label table and every batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from headtail.data.image_files import ImageFiles
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.training.eager import EagerStep
from headtail.training.step import Learner, TrainingStep
from headtail.training.streamed import StreamedStep


@final
class ShardedStep(TrainingStep):
    """Takes the step of this rank's part of a batch.

    All randomness of a step follows from (seed, epoch, step, rank): a resumed run has the same, and
    another number of ranks needs nothing from a checkpoint.

    Args:
        learner: with the batches of this rank.
    """

    def __init__(self, learner: Learner) -> None:
        assert learner.model.ranks is not None, "one process takes whole batches"
        files = isinstance(learner.batches.points.features, ImageFiles)
        self._step = StreamedStep(learner) if files else EagerStep(learner)
        self._seed = learner.run.seed
        self._rank = learner.model.ranks.rank
        head: Any = learner.model.head
        if isinstance(head, ShardedLabelHead):
            # From the first step on, so that a resumed run takes the same steps to the last digit.
            head.capture(examples=-(-learner.batches.size // learner.model.ranks.size))

    def order(self, epoch: int, start: int = 0) -> Iterator[tuple[int, Any]]:
        """The seed of each step, and this rank's part of its batch."""
        for step, batch in enumerate(self._step.order(epoch, start), start):
            yield seed_of(self._seed, epoch, step, self._rank), batch

    def __call__(self, batch: tuple[int, Any]) -> Tensor:
        """Take the step of this part."""
        seed, own = batch
        torch.manual_seed(seed)
        return self._step(own)


def seed_of(*numbers: int) -> int:
    """A seed for these numbers, unrelated to that of others.

    >>> seed_of(0, 1) == seed_of(0, 1), seed_of(0, 1) == seed_of(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
