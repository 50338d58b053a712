"""Filtered ranks of right answers over all labels, a few points at a time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.data.bag import ragged_rows
from headtail.data.points import Points
from headtail.encoders import Model
from headtail.evaluation.topk import SCORES_AT_ONCE, blocks
from headtail.metrics import Ranked, filtered_ranks

Scores = Iterable[tuple[Int[Tensor, " b"], Float[Tensor, "b L"]]]
"""Ids of points and their scores of all labels, block by block."""


@torch.no_grad()
def ranks_of_model(model: Model, points: Points) -> Ranked | None:
    """Filtered ranks under a model, adjusted as its answers are; None without `points.known`."""
    if points.known is None:
        return None
    head = model.head
    device = head.weight.device
    shift = None
    if head.loss.post_hoc:
        every_label = torch.arange(points.num_labels, device=device)
        shift = head.loss.post_hoc * head.labels.log_prior(every_label).float()
    scores = (
        (ids, head.logits(model.encode(features)) - (0 if shift is None else shift))
        for ids, features in blocks(points, model, _at_once(points))
    )
    return _ranks(points, scores)


def ranks_of_most_popular(train: Labels, points: Points) -> Ranked | None:
    """Filtered ranks of labels by their training counts; equally frequent ones are equal."""
    if points.known is None:
        return None
    counts = train.counts.cpu().double()
    parts = torch.arange(len(points)).split(_at_once(points))
    return _ranks(points, ((ids, counts.expand(len(ids), -1)) for ids in parts))


def _at_once(points: Points) -> int:
    return max(1, SCORES_AT_ONCE // points.num_labels)


def _ranks(points: Points, scores: Scores) -> Ranked:
    assert points.known is not None
    parts = []
    for ids, block in scores:
        labels = ragged_rows(points.labels, ids)
        part = filtered_ranks(block, labels, ragged_rows(points.known, ids), SCORES_AT_ONCE)
        parts.append((ids[part.point], part.label, part.rank))
    point, label, rank = (torch.cat(column) for column in zip(*parts, strict=True))
    return Ranked(point, label, rank, len(points))
