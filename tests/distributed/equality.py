"""The same training on one process and on all ranks, and how far apart the results are."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headtail import LabelHead
from headtail.core.placement import Share
from headtail.distributed import ShardedLabelHead
from headtail.losses import Loss, SampledLoss
from headtail.samplers import Draw
from tests.distributed.batches import (
    LABELS,
    Batch,
    D,
    L,
    as_one,
    number_of_pairs,
    of_ranks,
    pairs_before,
)
from tests.distributed.cases import Case

STEPS = 20


class Learnt(NamedTuple):
    """What a rank can compare: each as float64."""

    losses: Tensor
    """Of all steps."""
    hidden: Tensor
    """Gradients of this rank's hidden states in all steps."""
    tables: Tensor
    """This rank's rows and biases, and the temperature, after the last step."""


def alone(case: Case, dtype: torch.dtype, steps: int, share: Share) -> Learnt:
    """One process that gets the batches of all ranks; of what it learns, this rank's part."""
    loss = case.loss()
    head = LabelHead(LABELS, D, loss, bias=case.bias, sparse=_sparse(case), dtype=dtype)
    every = share.labels()
    _start(head, torch.arange(L))
    optimizer = case.optimizer(head.parameters())
    rank = dist.get_rank()
    losses = []
    grads = []
    source = case.loss()
    for step in range(steps):
        batches = of_ranks(case.form, step, dist.get_world_size(), dtype)
        joint = as_one(batches)
        hidden = joint.hidden.clone().requires_grad_()
        given = _given(case, source, joint, step, shared_seed=True)
        value = head(hidden, joint.target, **given, **joint.options)
        optimizer.zero_grad()
        value.sum().backward()
        optimizer.step()
        before = sum(len(batch.hidden) for batch in batches[:rank])
        assert hidden.grad is not None
        grads.append(hidden.grad[before : before + len(batches[rank].hidden)].flatten())
        start = pairs_before(batches, rank)
        stop = start + number_of_pairs(batches[rank].target)
        losses.append(value.detach().flatten()[start:stop] if value.dim() else value.detach()[None])
    head.flush()
    tables = [head.weight[every]] + ([] if head.bias is None else [head.bias[every]])
    return _learnt(losses, grads, tables, head)


def together(case: Case, dtype: torch.dtype, steps: int) -> tuple[Learnt, ShardedLabelHead]:
    """All ranks, each with its own batches."""
    loss = case.loss()
    head = ShardedLabelHead(LABELS, D, loss, bias=case.bias, sparse=_sparse(case), dtype=dtype)
    _start(head, head.share.labels())
    optimizer = case.optimizer(head.parameters())
    losses = []
    grads = []
    source = case.loss()
    for step in range(steps):
        batches = of_ranks(case.form, step, dist.get_world_size(), dtype)
        own = batches[dist.get_rank()]
        hidden = own.hidden.clone().requires_grad_()
        given = _given(case, source, as_one(batches), step, shared_seed=False)
        value = head(hidden, own.target, **given, **own.options)
        optimizer.zero_grad()
        value.sum().backward()
        optimizer.step()
        assert hidden.grad is not None
        grads.append(hidden.grad.flatten() / dist.get_world_size())
        losses.append(value.detach().reshape(-1))
    head.flush()
    tables = [head.weight] + ([] if head.bias is None else [head.bias])
    return _learnt(losses, grads, tables, head), head


def equal(case: Case, steps: int = STEPS, *, single: bool = True) -> None:
    """Sharded training is that of one process: in float64 to 1e-12, and in float32 no further from
    float64 than twice the distance of one process.
    """
    ours, head = together(case, torch.float64, steps)
    exact = alone(case, torch.float64, steps, head.share)
    for name, mine, theirs in zip(Learnt._fields, ours, exact, strict=True):
        assert mine.shape == theirs.shape
        scale = theirs.abs().clamp(min=1)
        distance = float(((mine - theirs).abs() / scale).max()) if len(mine) else 0.0
        assert distance < 1e-12, f"{name} are {distance:.2g} from one process"
    if not single:
        return
    ours, _ = together(case, torch.float32, steps)
    theirs = alone(case, torch.float32, steps, head.share)
    for name, mine, other, truth in zip(Learnt._fields, ours, theirs, exact, strict=True):
        errors = torch.stack([(mine - truth).square().sum(), (other - truth).square().sum()])
        dist.all_reduce(errors)
        ratio = float((errors[0] / errors[1]).sqrt()) if errors[0] else 0.0
        assert ratio <= 2, f"{name} are {ratio:.3g} times as far from float64 as one process"


def _start(head: LabelHead | ShardedLabelHead, labels: Tensor) -> None:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(L, D, generator=generator, dtype=torch.float64)
    bias = torch.randn(L, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight[labels])
        if head.bias is not None:
            head.bias.copy_(bias[labels])


def _given(
    case: Case, loss: Loss, joint: Batch, step: int, *, shared_seed: bool
) -> dict[str, Draw | torch.Generator]:
    """The negatives, drawn by the sampler of this loss, or where they come from."""
    if not isinstance(loss, SampledLoss):
        return {}
    generator = torch.Generator().manual_seed(100 + step)
    if case.draws:
        past = torch.multinomial(LABELS.prior, 30, True, generator=generator)
        for sampler in loss.sampler.modules():
            if hasattr(sampler, "refresh"):
                sampler.refresh(past)
        ignore = loss.settings.ignore_index
        return {"draw": loss.sampler.draw(joint.target, generator=generator, ignore_index=ignore)}
    if shared_seed:  # what all ranks use to draw together
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator().manual_seed(seed)
    return {"generator": generator}


def _sparse(case: Case) -> bool:
    return isinstance(case.loss(), SampledLoss)


def _learnt(
    losses: list[Tensor], grads: list[Tensor], tables: list[Tensor], head: torch.nn.Module
) -> Learnt:
    tables = [table.detach().flatten().double() for table in tables]
    temperature = getattr(head.loss, "temperature", None)
    if isinstance(temperature, Tensor):
        tables.append(temperature.detach().reshape(1).double())
    return Learnt(torch.cat(losses).double(), torch.cat(grads).double(), torch.cat(tables))
