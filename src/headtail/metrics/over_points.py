"""Metrics that are means over pairs or over points.

Each takes the ranks of right labels and returns a `Ratio`. Of the pairs of a slice
(`Ranked.by_slice`), only the labels of that slice are right answers, and only points that have one
count. Points without labels count nowhere, where napkinxc counts zeros.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from headtail.metrics.ranked import Ranked, Ratio, place_within


def recall(ranked: Ranked, k: int) -> Ratio:
    """The share of (point, label) pairs with the label among its point's first k.

    >>> from headtail import Ragged
    >>> top, labels = torch.tensor([[0, 1, 2], [2, 1, 0]]), Ragged.from_lists([[1, 2], [0]])
    >>> round(recall(Ranked.of(top, labels, num_labels=3), 2).value, 4)
    0.3333
    """
    pairs = ranked.per_point(torch.ones_like(ranked.rank))
    return Ratio(f"recall@{k}", ranked.slice, ranked.per_point(ranked.hit(k)), pairs)


def hit_rate(ranked: Ranked, k: int) -> Ratio:
    """The share of points with at least one right label among the first k.

    With one label per point it equals recall@k.

    >>> from headtail import Ragged
    >>> top, labels = torch.tensor([[0, 1, 2], [2, 1, 0]]), Ragged.from_lists([[1, 2], [0]])
    >>> hit_rate(Ranked.of(top, labels, num_labels=3), 2).value
    0.5
    """
    return Ratio(f"hit-rate@{k}", ranked.slice, (ranked.first <= k).double(), _labelled(ranked))


def mrr(ranked: Ranked, k: int) -> Ratio:
    """The mean over points of 1/rank of the first right label, 0 where it is not among the first k.

    >>> from headtail import Ragged
    >>> top, labels = torch.tensor([[0, 1, 2], [2, 1, 0]]), Ragged.from_lists([[1, 2], [0]])
    >>> mrr(Ranked.of(top, labels, num_labels=3), 2).value
    0.25
    """
    first = ranked.first
    return Ratio(f"mrr@{k}", ranked.slice, (first <= k) / first, _labelled(ranked))


def ndcg(ranked: Ranked, k: int) -> Ratio:
    r"""The mean over points of the discounted gain of the first k, divided by the best possible: a
    right label at rank r counts $1/\log_2(r + 1)$, and min(k, labels of the point) of them are
    possible.

    >>> from headtail import Ragged
    >>> top, labels = torch.tensor([[0, 1, 2], [2, 1, 0]]), Ragged.from_lists([[1], [2, 1]])
    >>> round(ndcg(Ranked.of(top, labels, num_labels=3), 2).value, 4)
    0.8155
    """
    best = (1 / torch.arange(2, k + 2).double().log2()).cumsum(0)
    gained = ranked.per_point(ranked.hit(k) / (ranked.rank + 1).log2())
    possible = best[ranked.labels_of_point.clamp(1, k) - 1]
    return Ratio(f"ndcg@{k}", ranked.slice, gained / possible, _labelled(ranked))


def precision(ranked: Ranked, k: int) -> Ratio:
    """The mean over points of the share of right labels among the first k, divided by k even where
    a point has fewer labels.

    >>> from headtail import Ragged
    >>> top, labels = torch.tensor([[0, 1, 2], [2, 1, 0]]), Ragged.from_lists([[1], [2, 1]])
    >>> precision(Ranked.of(top, labels, num_labels=3), 2).value
    0.75
    """
    hits = ranked.per_point(ranked.hit(k) / k)
    return Ratio(f"precision@{k}", ranked.slice, hits, _labelled(ranked))


def psp(ranked: Ranked, inverse: Float64[Tensor, " L"], k: int) -> Ratio:
    """Propensity-scored precision: hits among the first k count $1/p_y$, summed over points,
    divided by the largest sum that any ranking can have.

    Args:
        ranked: the ranks of right labels.
        inverse: $1/p$ of every label, see `inverse_propensity`.
        k: how many labels of each point count.

    >>> from headtail import Ragged
    >>> ranked = Ranked.of(torch.tensor([[0, 1]]), Ragged.from_lists([[0, 1]]), num_labels=2)
    >>> psp(ranked, torch.tensor([1.0, 4.0]).double(), 1).value
    0.25
    """
    gain = inverse[ranked.label]
    rarest_first = gain.argsort(descending=True, stable=True)
    rarest_first = rarest_first[ranked.point[rarest_first].argsort(stable=True)]
    best_rank = torch.empty_like(ranked.point)
    best_rank[rarest_first] = place_within(ranked.point, ranked.num_points) + 1
    # Precision's 1/k would be above and below, so it is left out.
    most = ranked.per_point(gain * (best_rank <= k))
    return Ratio(f"psp@{k}", ranked.slice, ranked.per_point(gain * ranked.hit(k)), most)


def _labelled(ranked: Ranked) -> Float64[Tensor, " n"]:
    return (ranked.labels_of_point > 0).double()
