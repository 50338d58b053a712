"""How popular the answers are: the most popular labels, coverage, popularity bias, propensities."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.core.targets import Ragged
from headtail.errors import HeadtailError, check_count
from headtail.metrics.ranked import Ranked, Ratio, members_of, place_within, sorted_pairs


def coverage(top: Int[Tensor, "n K"], slices: Slices, k: int) -> dict[str, float]:
    """The share of all labels, and of each slice, that are in some point's first k; nan for an
    empty slice.

    Args:
        top: `[n, K]` the best labels of each point, best first; −1 where there is none.
        slices: head, torso and tail.
        k: how many labels of each point count.

    >>> coverage(torch.tensor([[0, 1], [0, 2]]), Labels.from_counts([300, 2, 2]).slices(), k=1)
    {'full': 0.3333333333333333, 'head': 1.0, 'torso': nan, 'tail': 0.0}
    """
    members = members_of(slices)
    shown = torch.zeros_like(members["full"])
    first = top[:, :k].cpu()
    shown[first[first >= 0].long()] = True
    return {name: float(shown[labels].double().mean()) for name, labels in members.items()}


def popularity(
    top: Int[Tensor, "n K"], ranked: Ranked, share: Float64[Tensor, " L"], k: int
) -> Ratio:
    r"""How popular the first k are: the mean over points of the mean popularity of their answers
    (average recommendation popularity; Yin et al., VLDB 2012),

    $$\mathrm{GAP}_r = \frac{1}{n} \sum_i \frac{1}{|R_i|} \sum_{y \in R_i} \phi_y.$$

    Points without labels or without answers are left out.

    Args:
        top: `[n, K]` the best labels of each point, best first; −1 where there is none.
        ranked: the right labels of the same points.
        share: $\phi$ of every label: the share of the training points that have it.
        k: how many labels of each point count.

    >>> ranked = Ranked.of(torch.tensor([[0, 1]]), Ragged.from_lists([[1]]), num_labels=2)
    >>> popularity(torch.tensor([[0, 1]]), ranked, torch.tensor([0.5, 0.25]).double(), k=2).value
    0.375
    """
    recommended, consumed = _mean_popularity(top, ranked, share, k)
    return Ratio(f"popularity@{k}", "full", recommended, (consumed >= 0).double())


def popularity_lift(
    top: Int[Tensor, "n K"], ranked: Ranked, share: Float64[Tensor, " L"], k: int
) -> Ratio:
    r"""Popularity bias: how much more popular the first k are than what the same points have
    in the test set (ΔGAP, or popularity lift; Abdollahpouri et al., 2019 and RecSys 2020),

    $$\frac{\mathrm{GAP}_r - \mathrm{GAP}_c}{\mathrm{GAP}_c}, \qquad
      \mathrm{GAP}_c = \frac{1}{n} \sum_i \frac{1}{|C_i|} \sum_{y \in C_i} \phi_y,$$

    where $C_i$ are the labels of point i. 0 means as popular as what is consumed, 1 twice as
    popular, below 0 less popular. Arguments as for `popularity`.

    >>> ranked = Ranked.of(torch.tensor([[0, 1]]), Ragged.from_lists([[1]]), num_labels=2)
    >>> share = torch.tensor([0.75, 0.25]).double()
    >>> popularity_lift(torch.tensor([[0, 1]]), ranked, share, k=2).value
    1.0
    """
    recommended, consumed = _mean_popularity(top, ranked, share, k)
    consumed = consumed.clamp(min=0)
    # Where training has none of the test's labels, there is nothing to compare with.
    above = (recommended - consumed) * bool(consumed.any())
    return Ratio(f"popularity-lift@{k}", "full", above, consumed)


def _mean_popularity(
    top: Tensor, ranked: Ranked, share: Tensor, k: int
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """The mean popularity of each point's answers and of its labels; 0 and −1 where a point does
    not count, because it has no labels or no answers.
    """
    first = top[:, :k].cpu().long()
    answered = first >= 0
    answers = answered.sum(1)
    counts = (answers > 0) & (ranked.labels_of_point > 0)
    recommended = (share[first.clamp(min=0)] * answered).sum(1) / answers
    consumed = ranked.per_point(share[ranked.label]) / ranked.labels_of_point
    return recommended.where(counts, 0.0), consumed.where(counts, -1.0)


def inverse_propensity(
    train: Labels, num_points: int, propensity: tuple[float, float] = (0.55, 1.5)
) -> Float64[Tensor, " L"]:
    r"""How much a hit counts that is likely to be missing from the test labels (Jain, Prabhu and
    Varma, KDD 2016):

    $$\frac{1}{p_y} = 1 + C\,(n_y + B)^{-A}, \qquad C = (\log N - 1)\,(B + 1)^A.$$

    Rare labels count more.

    Args:
        train: label counts n.
        num_points: N, the number of training points.
        propensity: A and B.

    >>> inverse_propensity(Labels.from_counts([500, 3]), num_points=500)
    tensor([1.2824, 4.7742], dtype=torch.float64)
    """
    a, b = propensity
    # A departure: with N < e the model would give probabilities above 1. No data set is that small,
    # so all labels count the same there.
    c = max(math.log(check_count("num_points", num_points)) - 1, 0.0) * (b + 1) ** a
    return 1 + c * (train.counts.cpu().double() + b) ** -a


def most_popular(train: Labels, n: int, k: int, seen: Ragged | None = None) -> Int64[Tensor, "n k"]:
    """The ranking that ignores the input: the k most frequent training labels, ties by id, for each
    of n points.

    Args:
        train: label counts of the training set.
        n: number of points.
        k: number of labels for each.
        seen: labels left out at each of the n points. Where fewer than k labels remain, −1 fills
            the row.

    >>> most_popular(Labels.from_counts([1, 5, 5]), 2, 2, seen=Ragged.from_lists([[], [1]]))
    tensor([[1, 2],
            [2, 0]])
    """
    ranking = train.counts.cpu().argsort(descending=True, stable=True)
    padded = torch.cat([ranking, torch.full((check_count("k", k),), -1)])
    if seen is None:
        return padded[:k].expand(n, k)
    if len(seen.offsets) - 1 != n:
        raise HeadtailError(
            f"`seen` has {len(seen.offsets) - 1:,} points, but `n` is {n:,}. Give a list for each "
            "point, [] for none."
        )
    point, place = sorted_pairs(seen, train.num_labels, "seen", key=ranking.argsort())
    # Before the i-th seen place (from 0) of a point, place − i others are unseen: from that column
    # on, it pushes one further.
    pushes = place - place_within(point, n)
    shift = torch.zeros(n, k, dtype=torch.int64)
    shift.index_put_((point[pushes < k], pushes[pushes < k]), torch.tensor(1), accumulate=True)
    return padded[torch.arange(k) + shift.cumsum(1)]
