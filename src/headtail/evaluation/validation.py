"""Validation: what is measured on held-out points after every epoch."""

from __future__ import annotations

from typing import Any

import torch

from headtail.core.labels import Labels
from headtail.core.margins import Margin
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Pairs, Ragged
from headtail.data.bag import ragged_rows
from headtail.data.points import Features, Points
from headtail.encoders import Model
from headtail.evaluation.topk import (
    POINTS_AT_ONCE,
    POINTS_AT_ONCE_ON_GPU,
    blocks,
    top_labels,
)
from headtail.implicit.implied import implied_margin_of
from headtail.losses import DecoupledLoss, Loss, SampledLoss, SoftmaxLoss
from headtail.samplers import Scorer


def implicit_loss_of(loss: Loss, batch_size: int, model: Scorer | None = None) -> Loss:
    """The loss over all labels that a scheme implicitly optimises.

    Args:
        loss: the scheme.
        batch_size: B, which decides what within-batch schemes optimise.
        model: the hidden states and table that a scheme which follows the model is asked about.
    """
    return exact_loss_of(loss, implied_margin_of(loss, batch_size, model))


def exact_loss_of(loss: Loss, margin: Margin) -> SoftmaxLoss | DecoupledLoss:
    """The loss over all labels of a scheme that implies this margin."""
    options: dict[str, Any] = {"temperature": loss.temperature, "score": loss.settings.score}
    if loss.piece is not None:
        return DecoupledLoss(margin, loss.piece, **options)
    by_score = loss.settings.score_margin
    if by_score is not None and by_score.constant is None:  # a constant one is part of ρ
        options["score_margin"] = by_score
    return SoftmaxLoss(margin, **options)


SCORES_ON_GPU = 2**25
"""Scores of pairs and labels for which a GPU takes more points at a time than a CPU: with few, it
waits for the host.
"""


class Validation:
    """Measures a model on held-out points.

    Args:
        points: the held-out points.
        labels: the training distribution.
        metric: "implicit-loss" (what the scheme implicitly optimises, over all labels, mean over
            pairs; lower is better), "recall@10" or "precision@1".
        batch_size: B, which decides what within-batch schemes optimise.
        at_once: points whose loss is computed at a time; on a GPU more where their scores are few.
    """

    def __init__(
        self,
        points: Points,
        labels: Labels | ShardedLabels,
        metric: str,
        batch_size: int,
        *,
        at_once: int = POINTS_AT_ONCE // 4,
    ) -> None:
        self.points = points
        self.labels = labels
        self.metric = metric
        self.batch_size = batch_size
        self.at_once = at_once
        self._implicit: Loss | None = None

    def measure(self, model: Model) -> float:
        """The metric of a model in evaluation mode."""
        if self.metric == "implicit-loss":
            return self._loss(model)
        k = 10 if self.metric == "recall@10" else 1
        top = top_labels(model, self.points, k)
        values = self.points.labels.values.long()
        offsets = self.points.labels.offsets
        owner = torch.arange(len(self.points)).repeat_interleave(offsets.diff())
        hit = (top[owner] == values[:, None]).any(1).double()
        if self.metric == "recall@10":
            return float(hit.mean())
        labelled = int((offsets.diff() > 0).sum())
        return float(hit.sum()) / max(1, labelled)

    @torch.no_grad()
    def _loss(self, model: Model) -> float:
        head = model.head
        follows = isinstance(head.loss, SampledLoss) and head.loss.follows_model
        if self._implicit is None and not follows:
            self._implicit = implicit_loss_of(head.loss, self.batch_size)
        head.flush()
        device = head.weight.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        at_once = self.at_once
        if device.type == "cuda":
            pairs_each = max(1, self.points.num_pairs // max(1, len(self.points)))
            per_point = pairs_each * len(head.weight)
            at_once = max(at_once, min(POINTS_AT_ONCE_ON_GPU, SCORES_ON_GPU // per_point))
        for ids, features in blocks(self.points, model, at_once):
            labels = ragged_rows(self.points.labels, ids)
            if len(labels.values):
                target = Ragged(labels.values.long().to(device), labels.offsets.to(device))
                total += self._sum(model, features, target)
        return float(total) / self.points.num_pairs

    def _sum(self, model: Model, features: Features, target: Ragged) -> torch.Tensor:
        """The implicit loss of some points, summed over their pairs."""
        head = model.head
        hidden = model.encode(features)
        implicit = self._implicit
        if implicit is None:
            rows = Pairs.of(target).rows(hidden)
            score = head.loss.settings.score
            scorer = Scorer(rows, head.weight, head.bias, head.loss.temperature, score)
            implicit = implicit_loss_of(head.loss, self.batch_size, scorer)
        return implicit(hidden, head.weight, target, bias=head.bias, reduction="sum").double()
