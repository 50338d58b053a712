"""Training steps on a GPU as one CUDA graph: data resident, batches assembled there, one launch a
step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headtail.core.targets import IGNORE_INDEX, Ragged
from headtail.data.points import Bag, Picked, Points
from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.model import Batch
from headtail.rows.optimizers import RowOptimizer
from headtail.samplers.model.schedule import Scheduled
from headtail.training.checkpoint import remembering

if TYPE_CHECKING:
    from headtail.training.trainer import Trainer

DENSE_BELOW = 4096
"""Up to this many features a dense matrix product beats gathering rows."""
MANY_STEPS = 256
"""Whose ids are looked up at once."""
SHARE_OF_MEMORY = 0.4
"""Of the free GPU memory that the data set may take."""
TRIALS = 3
"""Steps before one is captured, in which libraries set themselves up."""


class Resident:
    """Points where a GPU can read them, so that a batch is just their ids: its shapes never change.

    Args:
        points: the training points.
        point_of: `[pairs]` the point of each pair.
        whole_points: whether batches hold whole points, with all their labels.
        size: rows of a batch.
        device: the GPU.
        pinned: leave sparse features in the host's memory, pinned, from where kernels fetch what
            they need.
    """

    def __init__(
        self,
        points: Points,
        point_of: Tensor,
        whole_points: bool,
        size: int,
        device: torch.device,
        *,
        pinned: bool = False,
    ) -> None:
        self.point_of = point_of.to(device)
        self.whole_points = whole_points
        self.bag = None
        self.dense = None
        features = points.features
        assert isinstance(features, Bag | Tensor), "picture files are streamed"
        if isinstance(features, Tensor) or points.num_features <= DENSE_BELOW:
            self.dense = (
                (features if isinstance(features, Tensor) else features.to(device).to_dense())
                .to(device)
                .contiguous()
            )
        else:
            lengths = features.offsets.diff()
            # a point comes once for each of its pairs
            lengths = lengths if whole_points else lengths[point_of]
            self.most = int(lengths.topk(min(size, len(lengths))).values.sum())
            self.bag = _pinned(features) if pinned else features.to(device)
        values = points.labels.values.to(device, torch.int64)
        self.target = (
            pad_labels(Ragged(values, points.labels.offsets.to(device))) if whole_points else values
        )

    @staticmethod
    def size(points: Points, whole_points: bool) -> tuple[int, int]:
        """Bytes of the features and of the rest."""
        n = len(points)
        features = points.features
        sparse = isinstance(features, Bag) and points.num_features > DENSE_BELOW
        number = features.element_size() if isinstance(features, Tensor) else 4  # bytes
        of_features = (
            8 * n + 8 * len(features.columns) if sparse else n * points.num_features * number
        )  # pyright: ignore[reportAttributeAccessIssue]
        labels = (
            8 * n * int(points.labels.offsets.diff().max())
            if whole_points
            else 8 * points.num_pairs
        )
        return of_features, labels + 8 * points.num_pairs

    def look_up(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The points and targets of these pairs, or points."""
        ids = ids.to(self.point_of.device, non_blocking=True)
        return ids if self.whole_points else self.point_of[ids], self.target[ids]

    def take(self, points: Tensor, target: Tensor) -> Batch:
        """The batch of these."""
        features = self.dense[points] if self.bag is None else Picked(self.bag, points, self.most)  # pyright: ignore[reportOptionalSubscript]
        return Batch(features, None, target)


def _pinned(bag: Bag) -> Bag:
    return Bag(
        bag.offsets.pin_memory(), bag.columns.pin_memory(), bag.values.pin_memory(), bag.num_columns
    )


def pad_labels(labels: Ragged) -> Tensor:
    """`[n, k]` labels, padded with −100."""
    lengths = labels.offsets.diff()
    row = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    place = torch.arange(len(labels.values), device=lengths.device) - labels.offsets[
        :-1
    ].repeat_interleave(lengths)
    padded = torch.full(
        (len(lengths), max(1, int(lengths.max()))),
        IGNORE_INDEX,
        dtype=torch.int64,
        device=lengths.device,
    )
    padded[row, place] = labels.values
    return padded


def graphed_step(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    """A step of this trainer as a CUDA graph, or step by step, with one line that says why, where
    that cannot be had.
    """
    batches = trainer.batches
    device = trainer.device
    room = SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]
    of_features, rest = Resident.size(batches.points, batches.whole_points)
    sparse = isinstance(batches.points.features, Bag) and batches.points.num_features > DENSE_BELOW
    own = isinstance(trainer.model.encoder, Bottleneck) and trainer.model.encoder.sparse
    if rest > room or (of_features + rest > room and not (sparse and own)):
        warnings.warn(
            "The data set does not fit on the GPU beside the model, so features travel step by "
            "step.",
            stacklevel=2,
        )
        return lambda ids: trainer.learn(trainer.model(_to(batches.take(ids), device)))
    pinned = of_features + rest > room
    if pinned:
        warnings.warn(
            "The features do not fit on the GPU beside the model, so it fetches them from the host.",
            stacklevel=2,
        )
    resident = Resident(
        batches.points, batches.point_of, batches.whole_points, batches.size, device, pinned=pinned
    )

    def step(points: Tensor, target: Tensor) -> Tensor:
        return trainer.learn(trainer.model(resident.take(points, target)))

    def eager(ids: Tensor) -> Tensor:
        return step(*resident.look_up(ids))

    run = trainer.run
    sparse_rows = trainer.model.head.sparse or getattr(trainer.model.encoder, "sparse", False)
    lazy_decay = run.weight_decay and isinstance(trainer.optimiser, RowOptimizer)
    memories = [module for _, module in remembering(trainer.model)]
    busy = [one for one in memories if not isinstance(one, Scheduled)]
    if lazy_decay or (run.clip and sparse_rows) or busy or trainer.model.mask_known:
        # Decay that is due, rows summed for clipping, how full a queue is, and a search for known
        # positives need the host.
        return eager
    random = torch.cuda.get_rng_state(device)
    try:
        return Graph(trainer, resident, step)
    except RuntimeError as error:
        _forget_capture(device, random)
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"This step cannot be captured as a CUDA graph ({reason}), so it runs operation by "
            "operation.",
            stacklevel=2,
        )
        return eager


def replayed(step: Callable[[], object], times: int = 1) -> Callable[[], object]:
    """So many steps, one after the other, as one CUDA graph; operation by operation where that
    cannot be had.
    """
    random = torch.cuda.get_rng_state()
    try:
        return graph_of(step, times).replay
    except RuntimeError:
        _forget_capture(torch.device("cuda"), random)
        return lambda: [step() for _ in range(times)]


def graph_of(step: Callable[[], object], times: int = 1) -> torch.cuda.CUDAGraph:
    """So many steps, one after the other, as one CUDA graph."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(TRIALS):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            step()
    return graph


def _forget_capture(device: torch.device, random: Tensor) -> None:
    """A capture that failed leaves torch's generator believing in it: give it a state of its own
    again.
    """
    fresh = torch.Generator(device)
    fresh.set_state(random)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


class Graph:
    """One step, captured; called with the points and targets of a batch, or with ids, it replays.

    A step in which a sampler looks at the whole table is taken operation by operation instead.
    """

    def __init__(
        self, trainer: Trainer, resident: Resident, step: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        # the graph knows its tensors by address: the step keeps them alive
        self.device = trainer.device
        self.step = step
        self.batches = trainer.batches
        self.resident = resident
        self.epochs = trainer.run.epochs
        self.optimiser = trainer.optimiser
        self._threads = ThreadPoolExecutor(1)
        self._ahead: dict[int, Future[Tensor]] = {}
        for group in trainer.optimiser.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
        self.points, self.target = (
            t.clone() for t in resident.look_up(trainer.batches.ids[: trainer.batches.size])
        )
        self.looking = [
            module for module in trainer.model.modules() if isinstance(module, Scheduled)
        ]
        notes = (buffer for sampler in self.looking for buffer in sampler.buffers())
        # a batch norm's running means too
        changed = *trainer.model.parameters(), *trainer.model.encoder.buffers(), *notes
        kept = [(tensor, tensor.detach().clone()) for tensor in changed]
        memories = [sampler.get_extra_state() for sampler in self.looking]
        random = torch.cuda.get_rng_state(self.device)
        try:
            self._capture(trainer)
        finally:  # undo the trial steps
            with torch.no_grad():
                for parameter, before in kept:
                    parameter.copy_(before)
                    for value in trainer.optimiser.state.get(parameter, {}).values():
                        value.zero_()
            for sampler, memory in zip(self.looking, memories, strict=True):
                sampler.set_extra_state(memory)
            torch.cuda.set_rng_state(random, self.device)

    def _capture(self, trainer: Trainer) -> None:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(TRIALS):
                self.step(self.points, self.target)
        torch.cuda.current_stream().wait_stream(beside)
        trainer.optimiser.zero_grad(set_to_none=True)
        # before updates, which run beside
        self.graph = torch.cuda.CUDAGraph()
        urgent = torch.cuda.Stream(priority=-1)
        with torch.cuda.graph(self.graph, stream=urgent):
            self.loss = self.step(self.points, self.target)

    def order(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The points and targets of each batch of an epoch, looked up many steps at a time: a step
        only copies its own.
        """
        shuffled = self._ahead.pop(epoch, None) or self._threads.submit(
            self.batches.shuffled, epoch
        )
        if epoch + 1 < self.epochs:  # while the GPU is busy with this one
            self._ahead = {epoch + 1: self._threads.submit(self.batches.shuffled, epoch + 1)}
        order = (
            shuffled.result()[start * self.batches.size :]
            .to(self.device)
            .view(-1, self.batches.size)
        )
        for ids in order.split(MANY_STEPS):
            yield from zip(*self.resident.look_up(ids), strict=True)

    def __call__(self, batch: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Take the step; what comes back is overwritten by the next."""
        points, target = self.resident.look_up(batch) if isinstance(batch, Tensor) else batch
        self.points.copy_(points)
        self.target.copy_(target)
        if any(sampler.due for sampler in self.looking):
            loss = self.step(self.points, self.target)
            self.optimiser.zero_grad(set_to_none=True)  # the graph has gradients of its own
            return loss
        self.graph.replay()
        for sampler in self.looking:
            sampler.passed()
        return self.loss


def _to(batch: Batch, device: torch.device) -> Batch:
    target = batch.target
    if isinstance(target, Ragged):
        target = Ragged(target.values.to(device).long(), target.offsets.to(device))
    row = None if batch.row is None else batch.row.to(device)
    features = batch.features.gathered() if isinstance(batch.features, Picked) else batch.features
    return Batch(
        features.to(device), row, target.to(device) if isinstance(target, Tensor) else target
    )
