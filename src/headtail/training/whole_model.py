"""The weights of a model that ranks share, as those of one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.encoders import Model
from headtail.rows.decay import catch_up
from headtail.training.checkpoint import remembering, weights_of

NUMBERS_AT_ONCE = 2**24
"""Numbers of a table that each rank sends to the first at a time."""
TABLES = ("model.head.weight", "model.head.bias")
"""What each rank has its own rows of."""


def weights_of_all(model: Model) -> dict[str, Tensor]:
    """The weights of a model with a whole table, on the first rank; nothing on others. Every rank
    must call it.

    Pending weight decay is applied first. A queue's content is that of the samplers of all labels.
    """
    head: Any = model.head
    for parameter in model.parameters():
        catch_up(parameter)
    weights = weights_of(model)
    tables = {
        name: gathered_rows(weights.pop(name).detach(), head) for name in TABLES if name in weights
    }
    if head.ranks.rank != 0:
        return {}
    parts, wholes = (
        [f"model.{name}." for name, _ in remembering(model) if name.startswith(where)]
        for where in ("head.part", "head.loss")
    )
    for part, whole in zip(parts, wholes, strict=True):
        names = [name for name in weights if name.startswith(part)]
        weights |= {whole + name.removeprefix(part): weights[name] for name in names}
    own = [name for name in weights if name.startswith("model.head.part.")]
    return tables | {name: weights[name] for name in weights if name not in own}


def gathered_rows(rows: Tensor, head: ShardedLabelHead) -> Tensor:
    """`[L, …]` rows of all labels in their order, in host memory of the first rank; nothing on
    others.

    Args:
        rows: `[n, …]` of this rank.
        head: whose rows they are.
    """
    ranks = head.ranks
    shares = [head.placement.share(rank, ranks.size) for rank in range(ranks.size)]
    longest = max(map(len, shares))
    at_once = min(longest, max(1, NUMBERS_AT_ONCE // max(1, rows.shape[1:].numel())))
    first = ranks.rank == 0
    whole = rows.new_empty(head.labels.num_labels if first else 0, *rows.shape[1:], device="cpu")
    for start in range(0, longest, at_once):
        own = rows[start : start + at_once].cpu()
        sent = rows.new_zeros(at_once, *rows.shape[1:], device="cpu")
        sent[: len(own)] = own
        received = [torch.empty_like(sent) for _ in shares] if first else []
        dist.gather(sent, received or None, group=ranks.group, group_dst=0)
        for share, part in zip(shares, received, strict=False):
            labels = share.labels(torch.arange(len(share))[start : start + at_once])
            whole[labels] = part[: len(labels)]
    return whole
