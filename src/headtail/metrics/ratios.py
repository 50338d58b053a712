"""Every metric of a ranking that is a ratio of sums over points, by slice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.core.targets import Ragged
from headtail.errors import HeadtailError, check_ids
from headtail.metrics.over_points import hit_rate, mrr, ndcg, precision, psp, recall
from headtail.metrics.popularity import inverse_propensity, popularity, popularity_lift
from headtail.metrics.ranked import DEEPEST, Ranked, Ratio


def ratios(
    top: Int[Tensor, "n K"],
    labels: Ragged,
    train: Labels,
    slices: Slices,
    *,
    num_points: int,
    propensity: tuple[float, float] = (0.55, 1.5),
) -> Iterator[Ratio]:
    r"""Every metric on a test set that is a ratio of sums, by slice of the *label* where a label
    decides it. They are computed one at a time, so that few are in memory.

    Over (point, label) pairs, for full, head, torso and tail; $h_k$ is 1 where a pair's label is
    among its point's first k:

    - recall@1, @10, @20, @50: the mean of $h_k$ over pairs.
    - macro-recall@10: the mean over labels in the test set of their own recall@10.
    - balanced-error: 1 − the mean over labels in the test set of their own recall@1.
    - class-weighted-error (full): the same errors of labels, weighted by the training prior π of
      the labels in the test set: what a test set with the training's proportions would show.

    Over points with at least one label of the slice, for full, head, torso and tail; the labels of
    the slice are the right ones, and ranks are those in the whole ranking: hit-rate@10, @20,
    mrr@10, @20, ndcg@1, @3, @5, @10, @20. See `hit_rate`, `mrr` and `ndcg`.

    Over points with at least one label, full only: precision@1, @3, @5, psp@1, @3, @5,
    popularity@10, popularity-lift@10. See `precision`, `psp`, `inverse_propensity`, `popularity`
    and `popularity_lift`.

    Args:
        top: `[n, K]` the best labels of each point, best first; −1 where there is none, which
            matches nothing. Metrics of the first k are left out where K is less than k and L.
        labels: the labels of the same points; one listed twice at a point counts once.
        train: label counts of the training set.
        slices: head, torso and tail.
        num_points: N, the number of training points (`train.total` counts pairs).
        propensity: A and B of the propensity model; (0.5, 0.4) is usual for WikiLSHTC-325K, (0.6,
            2.6) for Amazon-670K.

    >>> train = Labels.from_counts([300, 30, 3])
    >>> top = torch.tensor([[0, 1, 2], [0, 2, 1]])
    >>> labels = Ragged.from_lists([[0], [2]])
    >>> metrics = ratios(top, labels, train, train.slices(), num_points=333)
    >>> [(ratio.slice, ratio.value) for ratio in metrics if ratio.metric == "recall@1"]
    [('full', 0.5), ('head', 1.0), ('torso', nan), ('tail', 0.0)]
    """
    _check(top, labels, train, slices)
    ranked = Ranked.of(top, labels, train.num_labels)
    inverse = inverse_propensity(train, num_points, propensity)
    share = train.counts.cpu().double() / num_points
    depth = depth_of(top, train.num_labels)
    return chain(
        (r for part in ranked.by_slice(slices) for r in _of_slice(part, train, depth)),
        [_class_weighted_error(ranked, train)],
        (precision(ranked, k) for k in (1, 3, 5) if k <= depth),
        (psp(ranked, inverse, k) for k in (1, 3, 5) if k <= depth),
        (one(top, ranked, share, 10) for one in (popularity, popularity_lift) if depth >= 10),
    )


def depth_of(top: Int[Tensor, "n K"], num_labels: int) -> float:
    """The largest k that a ranking decides: K, or any where it holds all labels."""
    return top.shape[1] if top.shape[1] < num_labels else math.inf


def _of_slice(ranked: Ranked, train: Labels, depth: float) -> Iterator[Ratio]:
    """The metrics that every slice has."""
    yield from (recall(ranked, k) for k in (1, 10, 20, DEEPEST) if k <= depth)
    yield from (hit_rate(ranked, k) for k in (10, 20) if k <= depth)
    yield from (mrr(ranked, k) for k in (10, 20) if k <= depth)
    yield from (ndcg(ranked, k) for k in (1, 3, 5, 10, 20) if k <= depth)
    weight = _per_label(ranked, train)
    labels = ranked.per_point(weight)
    if depth >= 10:
        found = ranked.per_point(weight * ranked.hit(10))
        yield Ratio("macro-recall@10", ranked.slice, found, labels)
    missed = ranked.per_point(weight * (1 - ranked.hit(1)))
    yield Ratio("balanced-error", ranked.slice, missed, labels)


def _class_weighted_error(ranked: Ranked, train: Labels) -> Ratio:
    weight = train.prior.cpu()[ranked.label] * _per_label(ranked, train)
    missed = ranked.per_point(weight * (1 - ranked.hit(1)))
    return Ratio("class-weighted-error", "full", missed, ranked.per_point(weight))


def _per_label(ranked: Ranked, train: Labels) -> Float64[Tensor, " p"]:
    """A label's average over its own n_y pairs is a sum over pairs of weight 1/n_y."""
    return 1 / torch.bincount(ranked.label, minlength=train.num_labels).double()[ranked.label]


def check_ranking(top: Tensor, n: int, num_labels: int) -> None:
    """Refuse what is not the best labels of n points.

    Args:
        top: `[n, K]` label ids on a CPU, or −1.
        n: number of points.
        num_labels: L.
    """
    check_ids("top", top, None)
    if top.dim() != 2 or len(top) != n or not top.shape[1]:
        raise HeadtailError(
            f"`top` must be the best labels of {n:,} points, of shape [{n}, K], but got "
            f"{list(top.shape)}."
        )
    low, high = (int(end) for end in top.aminmax()) if len(top) else (-1, -1)
    if low < -1 or high >= num_labels:
        bad = low if low < -1 else high
        raise HeadtailError(
            f"`top` must hold label ids from 0 to {num_labels - 1}, or -1 for none, but got {bad}."
        )


def _check(top: Tensor, labels: Ragged, train: Labels, slices: Slices) -> None:
    num_labels = train.num_labels
    check_ranking(top, len(labels.offsets) - 1, num_labels)
    if len(slices.of_label) != num_labels:
        raise HeadtailError(
            f"`slices` has {len(slices.of_label):,} labels, but `train` {num_labels:,}. Write "
            "`train.slices()`."
        )
