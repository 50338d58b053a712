"""Training steps on a GPU as one CUDA graph: one launch per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from headtail.device.graphs import capturing, warm_up
from headtail.samplers import Queue, Sampler
from headtail.samplers.model.schedule import Scheduled
from headtail.training.resident import Resident, ResidentOrder
from headtail.training.resident_sequences import ResidentSequences
from headtail.training.step import Learner, TrainingStep

REPLAYED = (Scheduled, Queue)
"""Samplers with a memory that a graph can go on with."""


@final
class CapturedStep(TrainingStep):
    """One step on resident data, captured as a CUDA graph and replayed.

    A step in which a sampler looks at the whole table, or fills its queue, runs eagerly instead.
    Raises RuntimeError if the step cannot be captured.
    """

    def __init__(self, learner: Learner, resident: Resident | ResidentSequences) -> None:
        self.learner = learner
        self.resident = resident  # a graph reads tensors by address, so they must stay alive
        self._order = ResidentOrder(resident, learner.batches, learner.run.epochs)
        for group in learner.optimiser.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=learner.device)
        first = learner.batches.shuffled(0)[: learner.batches.size]
        points, target = resident.look_up(first)
        self.points = points.clone()
        self.target = target.clone()
        samplers = (m for m in learner.model.modules() if isinstance(m, REPLAYED))
        self.samplers = list(samplers)
        with _undone(learner, self.samplers):
            for sampler in self.samplers:
                sampler.settle()
            self._capture()

    def _capture(self) -> None:
        warm_up(self._eager)
        self.learner.optimiser.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        # With priority over updates, which run on side streams.
        urgent = torch.cuda.Stream(priority=-1)
        with capturing(self.graph, urgent):
            self.loss = self._eager()

    def _eager(self) -> Tensor:
        batch = self.resident.take(self.points, self.target)
        return self.learner.learn(self.learner.model(batch))

    def order(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Points and targets of each batch."""
        return self._order(epoch, start)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Take the step of these points and targets; the next step overwrites what it returns."""
        points, target = batch
        self.points.copy_(points)
        self.target.copy_(target)
        if not all(sampler.settled for sampler in self.samplers):
            loss = self._eager()
            # The graph writes into gradients that it owns.
            self.learner.optimiser.zero_grad(set_to_none=True)
            return loss
        self.graph.replay()
        for sampler in self.samplers:
            sampler.count_step()
        return self.loss


@contextmanager
def _undone(learner: Learner, samplers: Sequence[Sampler]) -> Iterator[None]:
    """Undo the steps of the block: weights, optimiser, samplers and randomness stay as they are."""
    model = learner.model
    notes = (buffer for sampler in samplers for buffer in sampler.buffers())
    # The encoder's buffers include the running means of a batch norm.
    changed = (*model.parameters(), *model.encoder.buffers(), *notes)
    kept = [(tensor, tensor.detach().clone()) for tensor in changed]
    memories = [sampler.get_extra_state() for sampler in samplers]
    random = torch.cuda.get_rng_state(learner.device)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
                for value in learner.optimiser.state.get(tensor, {}).values():
                    value.zero_()
        for sampler, memory in zip(samplers, memories, strict=True):
            sampler.set_extra_state(memory)
        torch.cuda.set_rng_state(random, learner.device)
