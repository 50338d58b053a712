"""Validation where ranks share the labels: each rank has a part of the held-out points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import ragged_rows
from headtail.data.points import Points
from headtail.distributed.exact_in_blocks import exact_loss_in_blocks
from headtail.distributed.joint_batch import JointBatch, OwnBatch, check_alike
from headtail.distributed.own_margin import own_margin
from headtail.distributed.same_call import facts_of_settings, facts_of_states
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.sharded_loss import OwnRows
from headtail.encoders import Model
from headtail.evaluation.topk import blocks, own_points
from headtail.evaluation.validation import Validation, exact_loss_of
from headtail.losses import ExactLoss


@final
class ShardedValidation:
    """Measures what a `Validation` measures, on all ranks together. Every rank must call it.

    Args:
        validation: of one process, on all held-out points.
    """

    def __init__(self, validation: Validation) -> None:
        self.validation = validation
        self._implicit: Any = None

    def measure(self, model: Model) -> float:
        """The metric of a model in evaluation mode."""
        if self.validation.metric != "implicit-loss":
            return self.validation.measure(model)
        head: Any = model.head
        if self._implicit is None:
            margin = own_margin(head, self.validation.batch_size)
            self._implicit = exact_loss_of(head.loss, margin)
        head.flush()
        every = self.validation.points
        own = _own_part(every, head)
        total = torch.zeros((), dtype=torch.float64, device=head.weight.device)
        for ids, features in blocks(own, model, self.validation.at_once):
            labels = ragged_rows(own.labels, ids)
            device = head.weight.device
            target = Ragged(labels.values.long().to(device), labels.offsets.to(device))
            total += loss_over_all(head, self._implicit, model.encode(features), target)
        return float(total) / every.num_pairs


def _own_part(points: Points, head: ShardedLabelHead) -> Points:
    """The points of this rank, as many as any other has; those behind the last have no labels."""
    ids = own_points(len(points), head.ranks)
    own = points.select(ids)
    first = head.ranks.rank * len(ids)
    real = min(max(len(points) - first, 0), len(ids))
    end = int(own.labels.offsets[real])
    labels = Ragged(own.labels.values[:end], own.labels.offsets.clamp(max=end))
    return replace(own, labels=labels)


@torch.no_grad()
def loss_over_all(
    head: ShardedLabelHead, loss: ExactLoss, hidden: Tensor, target: Ragged
) -> Tensor:
    """A loss over all labels of the batches of all ranks, summed over their targets.

    Its memory does not grow with the number of labels.

    Args:
        head: has the rows of this rank.
        loss: any loss over all labels, instead of the head's own.
        hidden: of this rank.
        target: of this rank.
    """
    settings = loss.settings_with({"reduction": "sum"})
    own = OwnBatch.of(hidden, target, settings, head.weight, head.labels.num_labels)
    facts = facts_of_settings(settings, loss) | facts_of_states(hidden)
    table = head.ranks.numbers(own.numbers(0, facts, given=False, ready=False), hidden.device)
    check_alike(head.ranks, table, facts)
    batch = JointBatch.of(own, head.ranks, table)
    rows = OwnRows(head.weight, head.bias, head.share, sparse=False)
    return exact_loss_in_blocks(batch, rows, loss.margin)
