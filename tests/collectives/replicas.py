"""The same training on one process and on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headtail import Importance, LabelHead, Labels, RowAdagrad, SampledSoftmaxLoss, Uniform
from headtail.distributed import replicate
from headtail.losses import Loss
from headtail.rows.decay import catch_up

L, D, F, N = 23, 4, 5, 11
LABELS = Labels.zipf(L)


def device() -> str:
    """Where the backend of the process group expects tensors."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


class Model(nn.Module):
    """A linear encoder and a head."""

    def __init__(self, loss: Loss, dtype: torch.dtype, **options: Any) -> None:
        super().__init__()
        options = {"sparse": True, "bias": True} | options
        self.encoder = nn.Linear(F, D, dtype=dtype)
        self.head = LabelHead(LABELS, D, loss, dtype=dtype, **options)

    def forward(self, features: Tensor, target: Tensor, **options: Any) -> Tensor:
        return self.head(self.encoder(features), target, **options)


class Batch(NamedTuple):
    """A batch, or a rank's part of it."""

    features: Tensor
    target: Tensor

    @classmethod
    def of(cls, seed: int, dtype: torch.dtype, *shape: int) -> Batch:
        """The same on all ranks."""
        generator = torch.Generator().manual_seed(seed)
        shape = shape or (N,)
        features = torch.randn(*shape, F, generator=generator, dtype=torch.float64).to(dtype)
        target = torch.randint(1, L, shape, generator=generator)
        return cls(features.to(device()), target.to(device()))

    def ignoring(self, seed: int) -> Batch:
        """With few ignored targets on the first rank, and many on the others."""
        ignored = torch.rand(self.target.shape, generator=torch.Generator().manual_seed(seed)) < 0.6
        ignored[: self.cuts()[1] - 1] = False
        return self._replace(target=self.target.masked_fill(ignored.to(device()), -100))

    def cuts(self) -> list[int]:
        """Where parts begin and end: the first rank has more than the others."""
        size = dist.get_world_size()
        return [0, *(len(self.target) - 2 * (size - 1 - rank) for rank in range(size))]

    def part(self) -> Batch:
        """That of this rank."""
        here = slice(*self.cuts()[dist.get_rank() :][:2])
        return Batch(self.features[here], self.target[here])


class Loop(NamedTuple):
    """A loss, an optimiser and what happens between backward and step."""

    loss: Callable[[], Loss]
    optimizer: Callable[..., torch.optim.Optimizer]
    between: Callable[[nn.Module], object] = lambda model: None


def adagrad(parameters: Any) -> RowAdagrad:
    return RowAdagrad(parameters, lr=0.3)


def uniform(**options: Any) -> SampledSoftmaxLoss:
    return SampledSoftmaxLoss(Uniform(LABELS, 6), Importance(), **options)


def given_draw(model: Model, seed: int, target: Tensor) -> dict[str, Any]:
    """The same negatives on all ranks."""
    ids = torch.randint(1, L, (6,), generator=torch.Generator().manual_seed(seed)).to(device())
    sampler = model.head.loss.sampler
    return {"draw": sampler.describe(ids, target.clamp(min=0).reshape(-1), 6.0)}


def models(loss: Callable[[], Loss], dtype: torch.dtype, **options: Any) -> tuple[Model, Model]:
    """Two equal models, one for this process alone and one for all ranks together."""
    torch.manual_seed(1)
    alone = Model(loss(), dtype, **options).to(device())
    return alone, copy.deepcopy(alone)


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of parameters, weight decay included."""
    largest = [0.0]
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        catch_up(p)
        catch_up(q)
        largest.append(float((p.detach().double() - q.detach().double()).abs().max()))
    return max(largest)


def train(
    model: nn.Module, head_of: Model, loop: Loop, batches: list[Batch], *, draws: bool = True
) -> None:
    """One step per batch."""
    optimizer = loop.optimizer(model.parameters())
    for step, batch in enumerate(batches):
        given = given_draw(head_of, step, batch.target) if draws else {}
        optimizer.zero_grad()
        model(batch.features, batch.target, **given).backward()
        loop.between(model)
        optimizer.step()


def train_both(
    loss: Callable[[], Loss] = uniform,
    optimizer: Callable[..., torch.optim.Optimizer] = adagrad,
    between: Callable[[nn.Module], object] = lambda model: None,
    *,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, ...] = (),
    draws: bool = True,
    **options: Any,
) -> tuple[Model, Model]:
    """Train on the global batch alone, and on parts of it together."""
    alone, together = models(loss, dtype, **options)
    loop = Loop(loss, optimizer, between)
    batches = [Batch.of(step, dtype, *shape).ignoring(step) for step in range(3)]
    train(alone, alone, loop, batches, draws=draws)
    wrapped = DistributedDataParallel(replicate(together))
    train(wrapped, together, loop, [batch.part() for batch in batches], draws=draws)
    return alone, together
