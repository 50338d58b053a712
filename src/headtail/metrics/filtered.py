"""Filtered ranking: each right answer is ranked among all labels but the other right answers.

A point may have several right answers, as (head, relation) of a knowledge graph has several tails.
When one of them is ranked, the others must not count as mistakes (Bordes et al., NIPS 2013).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from headtail.core.slices import Slices
from headtail.core.targets import Ragged
from headtail.metrics.ranked import PLACES_AT_ONCE, Ranked, Ratio, sorted_pairs


def filtered_ranks(
    scores: Float[Tensor, "n L"],
    labels: Ragged,
    known: Ragged | None = None,
    most_places: int = PLACES_AT_ONCE,
) -> Ranked:
    """The rank of every (point, label) pair among the labels that are not known to be right.

    A pair's rank is 1 + the number of remaining labels with a higher score + half the number of
    remaining labels with an equal score: the mean rank over all orders of equal scores (the
    realistic rank of Berrendorf et al., 2020). So constant scores earn no rank of 1.

    Args:
        scores: `[n, L]` of all labels; evaluation calls this for a few points at a time.
        labels: the labels of the n points, all of them ranked; one listed twice counts once.
        known: other right answers of the n points. They, and the point's other labels, are removed.
        most_places: comparisons at a time, which bounds memory.

    >>> scores = torch.tensor([[5.0, 4.0, 3.0, 3.0]])
    >>> filtered_ranks(scores, Ragged.from_lists([[1, 2]]), Ragged.from_lists([[0]])).rank
    tensor([1.0000, 1.5000], dtype=torch.float64)
    """
    num_labels = scores.shape[1]
    point, label = (ids.to(scores.device) for ids in sorted_pairs(labels, num_labels, "labels"))
    own = scores[point, label]
    remaining = scores.index_put((point, label), scores.new_tensor(-torch.inf))
    if known is not None:
        pairs = sorted_pairs(known, num_labels, "known")
        remaining[pairs[0].to(scores.device), pairs[1].to(scores.device)] = -torch.inf
    ranks = []
    size = max(1, most_places // num_labels)
    for i, score in zip(point.split(size), own.split(size), strict=True):
        others = remaining[i]
        higher = (others > score.unsqueeze(1)).sum(1)
        equal = (others == score.unsqueeze(1)).sum(1)
        ranks.append(1 + higher + equal.double() / 2)
    rank = torch.cat(ranks).double()
    return Ranked(point.cpu(), label.cpu(), rank.cpu(), len(scores))


def filtered_ratios(ranked: Ranked, slices: Slices) -> list[Ratio]:
    """Means over (point, label) pairs of their filtered ranks, for full, head, torso and tail of
    the label: filtered-mrr, the mean of 1/rank over all ranks, and filtered-hits@1, @3, @10, the
    share of ranks of at most k.

    Args:
        ranked: filtered ranks, from `filtered_ranks`.
        slices: head, torso and tail.

    >>> from headtail import Labels
    >>> ranked = filtered_ranks(torch.tensor([[3.0, 2.0, 1.0]]), Ragged.from_lists([[0, 2]]))
    >>> metrics = filtered_ratios(ranked, Labels.from_counts([300, 30, 3]).slices())
    >>> [(ratio.slice, ratio.value) for ratio in metrics if ratio.metric == "filtered-mrr"]
    [('full', 0.75), ('head', 1.0), ('torso', nan), ('tail', 0.5)]
    """
    metrics = []
    for part in ranked.by_slice(slices):
        pairs = part.per_point(torch.ones_like(part.rank))
        gains: dict[str, Float64[Tensor, " p"]] = {"filtered-mrr": 1 / part.rank}
        gains |= {f"filtered-hits@{k}": part.hit(k) for k in (1, 3, 10)}
        metrics += [
            Ratio(metric, part.slice, part.per_point(gain), pairs) for metric, gain in gains.items()
        ]
    return metrics
