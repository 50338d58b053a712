"""Metrics by slice, exact, over the best labels of every test point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int, Int64
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.slices import NAMES, Slices
from headtail.core.targets import Pairs, Ragged
from headtail.errors import HeadtailError, check_count, check_ids

__all__ = [
    "LabelErrors",
    "Ratio",
    "coverage",
    "inverse_propensity",
    "label_errors",
    "mean_and_deviation",
    "most_popular",
    "ratios",
]

DEEPEST = 50
"""The largest k of any metric: how many labels a ranking must hold, or all of them where there are
fewer.
"""
PLACES_AT_ONCE = 2**22
"""Places of rankings that are compared with a label at a time, which bounds memory."""


class Ratio(NamedTuple):
    """A metric over a slice of the labels: a sum over points divided by another.

    Attributes:
        metric: for example "recall@10".
        slice: "full", "head", "torso" or "tail".
        numerator: `[n]` what each point adds above.
        denominator: `[n]` what it adds below.
    """

    metric: str
    slice: str
    numerator: Float64[Tensor, " n"]
    denominator: Float64[Tensor, " n"]

    @property
    def value(self) -> float:
        """The metric; nan where nothing in the test set decides it, as for an empty slice."""
        return float(self.numerator.sum() / self.denominator.sum())


def ratios(
    top: Int[Tensor, "n K"],
    labels: Ragged,
    train: Labels,
    slices: Slices,
    *,
    num_points: int,
    propensity: tuple[float, float] = (0.55, 1.5),
) -> list[Ratio]:
    r"""Every metric on a test set that is a ratio of sums, by slice of the *label* where a label
    decides it.

    Over (point, label) pairs, for full, head, torso and tail; $h_k$ is 1 where a pair's label is
    among its point's first k:

    - recall@1, @10, @50: the mean of $h_k$ over pairs.
    - macro-recall@10: the mean over labels in the test set of their own recall@10.
    - balanced-error: 1 − the mean over labels in the test set of their own recall@1.
    - class-weighted-error (full): the same errors of labels, weighted by the training prior π of
      the labels in the test set: what a test set with the training's proportions would show.

    Over points with at least one label, full only; points without labels are left out, where
    napkinxc counts zeros:

    - precision@1, @3, @5: hits among the first k, over k, even where a point has fewer labels than
      k.
    - ndcg@1, @3, @5: hits at rank r count $1/\log_2(r + 1)$, over the best sum that min(k, labels
      of the point) hits can have.
    - psp@1, @3, @5: hits count $1/p_y$ (see `inverse_propensity`), summed over points, over the
      best sum any ranking can have.

    Args:
        top: `[n, K]` the best labels of each point, best first, K ≥ min(50, L); −1 where there is
            none, which matches nothing.
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
    pairs = _rank(top.cpu(), labels, train.num_labels)
    inverse = inverse_propensity(train, num_points, propensity)
    return [*_over_pairs(pairs, train, slices), *_over_points(pairs, inverse)]


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
    members = _members(slices)
    shown = torch.zeros_like(members["full"])
    first = top[:, :k].cpu()
    shown[first[first >= 0].long()] = True
    return {name: float(shown[labels].double().mean()) for name, labels in members.items()}


class LabelErrors(NamedTuple):
    """The error of each label.

    Attributes:
        points: `[L]` test pairs of each label.
        error: `[L]` the share of them for which another label came first; nan where there are none.
    """

    points: Int64[Tensor, " L"]
    error: Float64[Tensor, " L"]


def label_errors(top: Int[Tensor, "n K"], labels: Ragged, num_labels: int) -> LabelErrors:
    """The error of each label; their mean over the labels in the test set is the balanced error.

    Args:
        top: `[n, K]` the best labels of each point, best first.
        labels: the labels of the same points.
        num_labels: L.

    >>> label_errors(torch.tensor([[0, 1], [0, 1]]), Ragged.from_lists([[0], [1]]), num_labels=3)
    LabelErrors(points=tensor([1, 1, 0]), error=tensor([0., 1., nan], dtype=torch.float64))
    """
    pairs = _rank(top[:, :1].cpu(), labels, num_labels)
    missed = torch.bincount(pairs.label, 1 - pairs.hit(1), minlength=num_labels)
    points = torch.bincount(pairs.label, minlength=num_labels)
    return LabelErrors(points, missed / points)


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
    point, place = _sorted_pairs(seen, train.num_labels, "seen", key=ranking.argsort())
    # Before the i-th seen place (from 0) of a point, place − i others are unseen: from that column
    # on, it pushes one further.
    pushes = place - _place_within(point, n)
    shift = torch.zeros(n, k, dtype=torch.int64)
    shift.index_put_((point[pushes < k], pushes[pushes < k]), torch.tensor(1), accumulate=True)
    return padded[torch.arange(k) + shift.cumsum(1)]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds, and the sample deviation (n − 1), None for a single seed.

    >>> mean_and_deviation([0.25, 0.75])
    (0.5, 0.3535533905932738)
    >>> mean_and_deviation([0.25])
    (0.25, None)
    """
    if not len(values):
        raise HeadtailError("`values` is empty, so it has no mean. Pass one number per seed.")
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else None


@dataclass(frozen=True, eq=False)
class _Ranked:
    """(point, label) pairs, sorted by point, with the rank of the label in its point's ranking.

    Attributes:
        point: `[p]`.
        label: `[p]`.
        rank: `[p]` from 1; inf where the ranking does not hold the label.
        num_points: n.
    """

    point: Int64[Tensor, " p"]
    label: Int64[Tensor, " p"]
    rank: Float64[Tensor, " p"]
    num_points: int

    def hit(self, k: int) -> Float64[Tensor, " p"]:
        """1 where the label is among the first k."""
        return (self.rank <= k).double()

    def per_point(self, values: Float64[Tensor, " p"]) -> Float64[Tensor, " n"]:
        """Sums over the pairs of each point."""
        return torch.zeros(self.num_points, dtype=torch.float64).index_add_(0, self.point, values)


def _over_pairs(pairs: _Ranked, train: Labels, slices: Slices) -> Iterator[Ratio]:
    """A label's average over its own n_y pairs is a sum over pairs of weight 1/n_y: so is every
    metric here.
    """
    per_pair = torch.ones_like(pairs.rank)
    per_label = 1 / torch.bincount(pairs.label, minlength=train.num_labels).double()[pairs.label]
    recalls = {f"recall@{k}": pairs.hit(k) for k in (1, 10, DEEPEST)}
    averages = {"macro-recall@10": pairs.hit(10), "balanced-error": 1 - pairs.hit(1)}
    for weight, gains in ((per_pair, recalls), (per_label, averages)):
        for name, members in _members(slices).items():
            in_slice = weight * members[pairs.label]
            below = pairs.per_point(in_slice)
            for metric, gain in gains.items():
                yield Ratio(metric, name, pairs.per_point(in_slice * gain), below)
    weight = train.prior.cpu()[pairs.label] * per_label
    missed = pairs.per_point(weight * (1 - pairs.hit(1)))
    yield Ratio("class-weighted-error", "full", missed, pairs.per_point(weight))


def _over_points(pairs: _Ranked, inverse: Float64[Tensor, " L"]) -> Iterator[Ratio]:
    """Precision, nDCG and PSP; `inverse` is the weight of a hit for the last."""
    count = torch.bincount(pairs.point, minlength=pairs.num_points)
    labelled = (count > 0).double()
    for k in (1, 3, 5):
        yield Ratio(f"precision@{k}", "full", pairs.per_point(pairs.hit(k) / k), labelled)
    for k in (1, 3, 5):
        best = (1 / torch.arange(2, k + 2).double().log2()).cumsum(0)[count.clamp(1, k) - 1]
        gained = pairs.per_point(pairs.hit(k) / (pairs.rank + 1).log2())
        yield Ratio(f"ndcg@{k}", "full", gained / best, labelled)
    # Precision's 1/k would be above and below, so it is left out.
    gain = inverse[pairs.label]
    rarest_first = gain.argsort(descending=True, stable=True)
    rarest_first = rarest_first[pairs.point[rarest_first].argsort(stable=True)]
    best_rank = torch.empty_like(pairs.point)
    best_rank[rarest_first] = _place_within(pairs.point, pairs.num_points) + 1
    for k in (1, 3, 5):
        most = pairs.per_point(gain * (best_rank <= k))
        yield Ratio(f"psp@{k}", "full", pairs.per_point(gain * pairs.hit(k)), most)


def _members(slices: Slices) -> dict[str, Bool[Tensor, " L"]]:
    of_label = slices.of_label.cpu()
    return {"full": torch.ones_like(of_label, dtype=torch.bool)} | {
        name: of_label == i for i, name in enumerate(NAMES)
    }


def _rank(
    top: Int[Tensor, "n K"], labels: Ragged, num_labels: int, most_places: int = PLACES_AT_ONCE
) -> _Ranked:
    """The rank of every label at its point, at most `most_places` comparisons at a time."""
    top = top[:, :DEEPEST]
    point, label = _sorted_pairs(labels, num_labels, "labels")
    place = torch.arange(1, top.shape[1] + 1, dtype=torch.float64)
    size = max(1, most_places // top.shape[1])
    blocks = zip(point.split(size), label.split(size), strict=True)
    rank = [torch.where(top[i] == y.unsqueeze(1), place, torch.inf).amin(1) for i, y in blocks]
    return _Ranked(point, label, torch.cat(rank), len(top))


def _sorted_pairs(
    ragged: Ragged, num_labels: int, name: str, key: Int64[Tensor, " L"] | None = None
) -> tuple[Tensor, Tensor]:
    """Points and labels (or their keys) of all different pairs, sorted by point, then label."""
    pairs = Pairs.of(
        Ragged(ragged.values.cpu(), ragged.offsets.cpu()), num_labels=num_labels, name=name
    )
    label = pairs.label if key is None else key[pairs.label]
    code = (pairs.example_of() * num_labels + label)[~pairs.ignored].unique()
    return code // num_labels, code % num_labels


def _place_within(point: Int64[Tensor, " p"], n: int) -> Int64[Tensor, " p"]:
    """How many pairs of the same point come before each of these pairs, sorted by point."""
    count = torch.bincount(point, minlength=n)
    return torch.arange(len(point)) - (count.cumsum(0) - count)[point]


def _check(top: Tensor, labels: Ragged, train: Labels, slices: Slices) -> None:
    check_ids("top", top, None)
    num_labels = train.num_labels
    n = len(labels.offsets) - 1
    if top.dim() != 2 or len(top) != n:
        raise HeadtailError(
            f"`top` must be the best labels of {n:,} points, of shape [{n}, K], but got "
            f"{list(top.shape)}."
        )
    if top.shape[1] < min(DEEPEST, num_labels):
        raise HeadtailError(
            f"`top` holds {top.shape[1]} labels per point, but recall@{DEEPEST} needs "
            f"{min(DEEPEST, num_labels)} of {num_labels:,}. "
            f"Ask for more, for example `head.topk(hidden, {min(DEEPEST, num_labels)})`."
        )
    low, high = (int(end) for end in top.aminmax()) if len(top) else (-1, -1)
    if low < -1 or high >= num_labels:
        bad = low if low < -1 else high
        raise HeadtailError(
            f"`top` must hold label ids from 0 to {num_labels - 1}, or -1 for none, but got {bad}."
        )
    if len(slices.of_label) != num_labels:
        raise HeadtailError(
            f"`slices` has {len(slices.of_label):,} labels, but `train` {num_labels:,}. Write "
            "`train.slices()`."
        )
