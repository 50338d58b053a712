"""What a rank of a sharded run has: rows of tables that only it has, and copies of the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from headtail.core.placement import Share
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.encoders import Model
from headtail.rows.decay import catch_up
from headtail.training import checkpoint
from headtail.training.checkpoint import remembering, weights_of

NUMBERS_AT_ONCE = 2**24
"""Numbers of a table that each rank sends to the first at a time."""
ROWS = tuple(
    f"{kind}.head.{table}" for kind in ("model", "optimiser", "owed") for table in ("weight", "bias")
)
"""What the names of tensors begin with that have a row for each label of the rank."""


class ShardedState(NamedTuple):
    """The tensors of a rank, by their names in a checkpoint.

    Attributes:
        rows: those with a row for each of the rank's labels.
        copies: those that all ranks have.
        numbers: of the optimiser, the same on all ranks.
    """

    rows: dict[str, Tensor]
    copies: dict[str, Tensor]
    numbers: dict[str, Any]

    @classmethod
    def of(cls, model: Model, optimiser: torch.optim.Optimizer) -> ShardedState:
        """All that the next step depends on but cannot be computed from labels and seeds."""
        tensors, facts = checkpoint.training_state(model, optimiser)
        kept = {name: t for name, t in tensors.items() if name not in _derived(model)}
        kept = {name: t for name, t in kept.items() if not name.startswith("random.")}
        rows = {name: t for name, t in kept.items() if is_of_rows(name, t.dim())}
        copies = {name: t for name, t in kept.items() if name not in rows}
        return cls(rows, copies, facts["optimiser"])

    def restore(self, model: Model, optimiser: torch.optim.Optimizer) -> None:
        """Give a model and its optimiser this state."""
        present = weights_of(model)
        tensors = {name: present[name] for name in _derived(model)}
        tensors |= checkpoint.random_state(model.head.weight.device)  # each step has its own seed
        tensors |= self.rows | self.copies
        checkpoint.restore_training_state(tensors, {"optimiser": self.numbers}, model, optimiser)


def is_of_rows(name: str, dims: int) -> bool:
    """Whether a tensor has a row for each label of a rank; an optimiser's scalars have none."""
    return dims > 0 and name.startswith(ROWS)


def _derived(model: Model) -> set[str]:
    """Names of the samplers' tables, which follow from the labels, and differ by rank."""
    memories = [f"model.{name}." for name, _ in remembering(model) if name.startswith("head.part")]
    buffers = [f"model.head.{name}" for name, _ in model.head.named_buffers()]
    extra = [f"model.{name}.extra" for name, _ in remembering(model)]
    return {name for name in buffers + extra if not name.startswith(tuple(memories))}


def as_distributed(rows: Tensor, head: ShardedLabelHead) -> DTensor:
    """A rank's rows as what they are: a part of a tensor with a row for each label."""
    mesh = DeviceMesh.from_group(head.ranks.group, rows.device.type)
    shape = torch.Size((head.labels.num_labels, *rows.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    local = rows.detach().contiguous()
    return DTensor.from_local(local, mesh, [Shard(0)], shape=shape, stride=stride)


def as_one_process(model: Model) -> dict[str, Tensor]:
    """The weights as those of a model with a whole table, on the first rank; nothing on others.
    Every rank must call it.
    """
    head: Any = model.head
    for parameter in model.parameters():
        catch_up(parameter)
    tables = {
        f"model.head.{name}": gathered_rows(parameter.detach(), head)
        for name, parameter in head.named_parameters(recurse=False)
    }
    if head.ranks.rank != 0:
        return {}
    weights = weights_of(model)
    memories = [f"model.{name}." for name, _ in remembering(model) if name.startswith("head.part")]
    whole = [f"model.{name}." for name, _ in remembering(model) if name.startswith("head.loss")]
    for own, other in zip(memories, whole, strict=True):
        names = [name for name in weights if name.startswith(own)]
        weights |= {other + name.removeprefix(own): weights[name] for name in names}
    return tables | {
        name: tensor
        for name, tensor in weights.items()
        if not name.startswith("model.head.part.") and name not in tables
    }


def gathered_rows(rows: Tensor, head: ShardedLabelHead) -> Tensor:
    """`[L, …]` rows of all labels in their order, on the host of the first rank; nothing on others.

    Args:
        rows: `[n, …]` of this rank.
        head: whose rows they are.
    """
    ranks = head.ranks
    shares = [head.placement.share(rank, ranks.size) for rank in range(ranks.size)]
    width = rows.shape[1:].numel()
    at_once = max(1, NUMBERS_AT_ONCE // max(1, width))
    first = ranks.rank == 0
    whole = rows.new_empty(head.labels.num_labels if first else 0, *rows.shape[1:], device="cpu")
    for start in range(0, max(map(len, shares)), at_once):
        block = slice(start, start + at_once)
        sent = rows.new_zeros(at_once, *rows.shape[1:], device="cpu")
        sent[: len(rows[block])] = rows[block].cpu()
        received = [torch.empty_like(sent) for _ in shares] if first else None
        dist.gather(sent, received, group=ranks.group, group_dst=0)
        for share, part in zip(shares, received or [], strict=False):
            labels = _labels_of(share, block)
            whole[labels] = part[: len(labels)]
    return whole


def _labels_of(share: Share, block: slice) -> Tensor:
    return share.labels(torch.arange(len(share))[block])
