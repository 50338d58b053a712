"""Own loops: an encoder of which every rank has a copy, or a part, below a sharded head."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from headtail import (
    Importance,
    LabelHead,
    Labels,
    RowAdagrad,
    SampledSoftmaxLoss,
    SplitOptimizer,
    Uniform,
)
from headtail.collectives.ranks import Ranks
from headtail.distributed import ShardedLabelHead, replicate
from headtail.distributed.replicate import average_encoder
from headtail.rows.decay import catch_up, catch_up_embeddings

L, D, WORDS, STEPS = 29, 4, 13, 20
LABELS = Labels.zipf(L)


class Encoder(nn.Module):
    """A table of words with sparse gradients, and layers with dense ones."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, D, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, D))

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.words(words))


class Model(nn.Module):
    """An encoder and a head."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, words: Tensor, target: Tensor, **options: Any) -> Tensor:
        hidden = self.encoder(words).to(self.head.weight.dtype)
        return self.head(hidden, target, **options)


class Pair(NamedTuple):
    """The same model in this process alone, and on all ranks."""

    alone: Model
    shared: Model

    @classmethod
    def of(cls, dtype: torch.dtype = torch.float64, *, sparse: bool = True) -> Pair:
        torch.manual_seed(3)
        loss = SampledSoftmaxLoss(Uniform(LABELS, 6), Importance())
        encoder = Encoder(sparse=sparse).to(dtype)
        alone = Model(encoder, LabelHead(LABELS, D, loss, bias=True, dtype=dtype))
        head = ShardedLabelHead(LABELS, D, loss, bias=True, dtype=dtype)
        own = head.share.labels()
        head.weight.data = alone.head.weight.detach()[own].clone()
        return cls(alone, Model(copy.deepcopy(encoder), head))

    def distance(self, encoder: nn.Module | None = None) -> float:
        """The largest difference of parameters; the encoder's are given where they are wrapped."""
        head = self.shared.head
        own = head.share.labels()
        for table in [*self.alone.parameters(), *self.shared.parameters()]:
            catch_up(table)
        pairs = [(self.alone.head.weight[own], head.weight), (self.alone.head.bias[own], head.bias)]
        shared = (encoder or self.shared.encoder).parameters()
        pairs += zip(self.alone.encoder.parameters(), map(_whole, shared), strict=True)
        return max(float((one - other).detach().double().abs().max()) for one, other in pairs)


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def batches(parts: int = 1) -> Iterator[list[tuple[Tensor, Tensor, Any]]]:
    """Words, targets and negatives of the micro-batches of each step."""
    generator = torch.Generator().manual_seed(5)
    sampler = Uniform(LABELS, 6)
    for _ in range(STEPS):
        micro = []
        for _ in range(parts):
            words = torch.randint(WORDS, (11,), generator=generator)
            target = words * 2 % L
            micro.append((words, target, sampler.draw(target, generator=generator)))
        yield micro


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a batch: the ranks' parts have different sizes."""
    size = dist.get_world_size()
    cuts = [0, *(len(tensor) - 2 * (size - 1 - rank) for rank in range(size))]
    return tensor[slice(*cuts[dist.get_rank() :][:2])]


def optimizer_of(model: Model, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """A row optimiser of tables, and torch's own of the layers."""
    tables = [*model.head.parameters(recurse=False)]
    dense = []
    for name, parameter in model.encoder.named_parameters():
        (tables if "words" in name else dense).append(parameter)
    dense_part = torch.optim.Adagrad(dense, lr=0.2, foreach=False)
    return SplitOptimizer(RowAdagrad(tables, lr=0.3, weight_decay=weight_decay), dense_part)


def _train(
    pair: Pair,
    wrapped: nn.Module,
    *,
    parts: int = 1,
    waiting: Callable[[], Any] | None = None,
    weight_decay: float = 0.0,
) -> list[tuple[float, float]]:
    """The losses of both, step by step.

    Args:
        pair: both models.
        wrapped: what calls the shared one.
        parts: micro-batches per step.
        waiting: makes a context in which gradients are not averaged, or None.
        weight_decay: of tables.
    """
    losses = []
    optimizers = [optimizer_of(model, weight_decay) for model in pair]
    for step in batches(parts):
        both = [0.0, 0.0]
        for number, (words, target, draw) in enumerate(step):
            last = number == parts - 1
            one = pair.alone(words, target, draw=draw) / parts
            one.backward()
            with nullcontext() if waiting is None or last else waiting():
                other = wrapped(own_part(words), own_part(target), draw=draw) / parts
                other.backward()
            both[0] += one.item()
            both[1] += other.item()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append((both[0], both[1]))
    return losses


def _check(losses: list[tuple[float, float]], distance: float, bound: float = 1e-12) -> None:
    assert max(abs(one - other) for one, other in losses) < bound, losses
    assert distance < bound, distance
    assert losses[0][0] > losses[-1][0] + 0.05, "nothing was learnt"


def ddp_learns_what_one_process_learns_from_the_joint_batch() -> None:
    pair = Pair.of()
    wrapped = DistributedDataParallel(replicate(pair.shared))
    _check(_train(pair, wrapped), pair.distance())


def ddp_adds_up_micro_batches() -> None:
    pair = Pair.of()
    wrapped = DistributedDataParallel(replicate(pair.shared))
    losses = _train(pair, wrapped, parts=3, waiting=wrapped.no_sync)
    _check(losses, pair.distance())


def ddp_in_bfloat16_has_gradients_as_exact_as_one_process() -> None:
    errors = [0.0, 0.0]
    for ((words, target, draw),) in batches():
        pair = Pair.of(torch.float32)
        exact = Pair.of().alone
        exact.load_state_dict(pair.alone.state_dict())
        wrapped = DistributedDataParallel(replicate(pair.shared))
        with torch.autocast("cpu", torch.bfloat16):
            pair.alone(words, target, draw=draw).backward()
            wrapped(own_part(words), own_part(target), draw=draw).backward()
        exact(words, target, draw=draw).backward()
        own = pair.shared.head.share.labels()
        truth = _gradients(exact, own)
        errors[0] += _error(_gradients(pair.alone, own), truth)
        errors[1] += _error(_gradients(pair.shared), truth)
    assert errors[0] > 0.01, "nothing was rounded"
    assert errors[1] < 1.2 * errors[0], errors


def _gradients(model: Model, own: Tensor | None = None) -> list[Tensor]:
    """Those of the encoder, and of the rows of these labels."""
    parameters = [*model.head.parameters(recurse=False), *model.encoder.parameters()]
    dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in parameters]
    return dense if own is None else [*(rows[own] for rows in dense[:2]), *dense[2:]]


def _error(gradients: list[Tensor], truth: list[Tensor]) -> float:
    pairs = zip(gradients, truth, strict=True)
    return sum(float((one.double() - other).norm()) for one, other in pairs)


def ddp_around_the_encoder_alone_needs_no_preparation() -> None:
    pair = Pair.of(sparse=False)
    pair.shared.encoder = DistributedDataParallel(pair.shared.encoder)
    losses = _train(pair, pair.shared)
    _check(losses, pair.distance(pair.shared.encoder.module))


def fsdp_of_the_encoder_learns_what_one_process_learns() -> None:
    pair = Pair.of(sparse=False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(pair.shared.encoder.layers, mesh=mesh)
    fully_shard(pair.shared.encoder, mesh=mesh)
    _check(_train(pair, pair.shared), pair.distance())


def fsdp_of_the_model_leaves_ignored_tables_alone() -> None:
    pair = Pair.of(sparse=False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    head = pair.shared.head
    fully_shard(pair.shared, mesh=mesh, ignored_params=set(head.parameters()))
    assert pair.shared.head.weight.shape == (len(head.share), D)
    _check(_train(pair, pair.shared), pair.distance())


def fsdp_adds_up_micro_batches() -> None:
    pair = Pair.of(sparse=False)
    encoder = fully_shard(
        pair.shared.encoder, mesh=init_device_mesh("cpu", (dist.get_world_size(),))
    )
    assert isinstance(encoder, FSDPModule)

    @contextmanager
    def waiting() -> Iterator[None]:
        encoder.set_requires_gradient_sync(False)
        yield
        encoder.set_requires_gradient_sync(True)

    _check(_train(pair, pair.shared, parts=3, waiting=waiting), pair.distance())


def averaged_copies_learn_what_one_process_learns() -> None:
    pair = Pair.of()
    with torch.no_grad():  # which the first rank's values replace
        pair.shared.encoder.words.weight.add_(dist.get_rank())
    average_encoder(pair.shared.encoder, pair.shared.head)
    _check(_train(pair, pair.shared), pair.distance())


def copies_with_weight_decay_stay_equal_to_the_last_bit() -> None:
    pair = Pair.of()
    catch_up_embeddings(pair.alone.encoder)
    average_encoder(pair.shared.encoder, pair.shared.head)
    _check(_train(pair, pair.shared, weight_decay=0.05), pair.distance())
    for parameter in pair.shared.encoder.parameters():
        every = Ranks.of().gather(parameter.detach())
        assert all(map(every[0].equal, every))


def a_rank_without_examples_takes_part() -> None:
    pair = Pair.of()
    average_encoder(pair.shared.encoder, pair.shared.head)
    optimizers = optimizer_of(pair.alone), optimizer_of(pair.shared)
    own = slice(None) if dist.get_rank() == 0 else slice(0)
    for ((words, target, draw),) in batches():
        pair.alone(words, target, draw=draw).backward()
        pair.shared(words[own], target[own], draw=draw).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert pair.distance() < 1e-12


def preparing_twice_averages_once() -> None:
    pair = Pair.of()
    wrapped = DistributedDataParallel(replicate(replicate(pair.shared)))
    assert len(pair.shared.head._forward_hooks) == 1
    _check(_train(pair, wrapped), pair.distance())
