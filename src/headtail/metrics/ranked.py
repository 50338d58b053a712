"""The ranks of the right labels in the rankings of their points: all that most metrics read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int, Int64
from torch import Tensor

from headtail.core.slices import NAMES, Slices
from headtail.core.targets import Pairs, Ragged, Target

DEEPEST = 50
"""The largest k of evaluation's metrics: how many labels its rankings hold."""
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


@dataclass(frozen=True, eq=False)
class Ranked:
    """(point, label) pairs, sorted by point, with the rank of the label in its point's ranking.

    Attributes:
        point: `[p]`.
        label: `[p]`.
        rank: `[p]` from 1; inf where the ranking does not hold the label.
        num_points: n.
        slice: which labels the pairs have: "full", "head", "torso" or "tail".

    >>> ranked = Ranked.of(torch.tensor([[4, 0, 2]]), Ragged.from_lists([[2, 3, 4]]), num_labels=5)
    >>> ranked.label.tolist(), ranked.rank.tolist()
    ([2, 3, 4], [3.0, inf, 1.0])
    """

    point: Int64[Tensor, " p"]
    label: Int64[Tensor, " p"]
    rank: Float64[Tensor, " p"]
    num_points: int
    slice: str = "full"

    @classmethod
    def of(
        cls,
        top: Int[Tensor, "n K"],
        labels: Target,
        num_labels: int,
        most_places: int = PLACES_AT_ONCE,
    ) -> Ranked:
        """The rank of every label at its point.

        Args:
            top: `[n, K]` the best labels of each point, best first; −1 where there is none.
            labels: the labels of the same points, in any form that losses take; one listed twice at
                a point counts once.
            num_labels: L.
            most_places: comparisons at a time.
        """
        top = top.cpu()
        point, label = sorted_pairs(labels, num_labels, "labels")
        place = torch.arange(1, top.shape[1] + 1, dtype=torch.float64)
        size = max(1, most_places // top.shape[1])
        blocks = zip(point.split(size), label.split(size), strict=True)
        rank = [torch.where(top[i] == y.unsqueeze(1), place, torch.inf).amin(1) for i, y in blocks]
        return cls(point, label, torch.cat(rank), len(top))

    def hit(self, k: int) -> Float64[Tensor, " p"]:
        """1 where the label is among the first k."""
        return (self.rank <= k).double()

    def per_point(self, values: Float64[Tensor, " p"]) -> Float64[Tensor, " n"]:
        """Sums over the pairs of each point."""
        return torch.zeros(self.num_points, dtype=torch.float64).index_add_(0, self.point, values)

    @property
    def labels_of_point(self) -> Int64[Tensor, " n"]:
        """The number of right labels of each point."""
        return torch.bincount(self.point, minlength=self.num_points)

    @property
    def first(self) -> Float64[Tensor, " n"]:
        """The rank of each point's best-ranked right label; inf where it has none."""
        none = torch.full((self.num_points,), torch.inf, dtype=torch.float64)
        return none.scatter_reduce(0, self.point, self.rank, "amin")

    def by_slice(self, slices: Slices) -> Iterator[Ranked]:
        """All pairs, then those whose labels are in the head, the torso and the tail; ranks stay
        those in the whole ranking.
        """
        of_pair = slices.of_label.cpu()[self.label]  # never all labels, of which there may be many
        insides = {"full": torch.ones_like(of_pair, dtype=torch.bool)}
        insides |= {name: of_pair == i for i, name in enumerate(NAMES)}
        for name, inside in insides.items():
            yield replace(
                self,
                point=self.point[inside],
                label=self.label[inside],
                rank=self.rank[inside],
                slice=name,
            )


def members_of(slices: Slices) -> dict[str, Bool[Tensor, " L"]]:
    """The labels of "full" (all of them), "head", "torso" and "tail"."""
    of_label = slices.of_label.cpu()
    return {"full": torch.ones_like(of_label, dtype=torch.bool)} | {
        name: of_label == i for i, name in enumerate(NAMES)
    }


def pairs_on_cpu(target: Target, num_labels: int, name: str) -> Pairs:
    """The (point, label) pairs of targets in any form, where rankings are compared with them."""
    if isinstance(target, Ragged):
        target = Ragged(target.values.cpu(), target.offsets.cpu())
    elif isinstance(target, Tensor):
        target = target.cpu()
    return Pairs.of(target, num_labels=num_labels, name=name)


def sorted_pairs(
    target: Target, num_labels: int, name: str, key: Int64[Tensor, " L"] | None = None
) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
    """Points and labels (or their keys) of all different pairs, sorted by point, then label."""
    pairs = pairs_on_cpu(target, num_labels, name)
    label = pairs.label if key is None else key[pairs.label]
    code = (pairs.example_of() * num_labels + label)[~pairs.ignored].unique()
    return code // num_labels, code % num_labels


def place_within(point: Int64[Tensor, " p"], n: int) -> Int64[Tensor, " p"]:
    """How many pairs of the same point come before each of these pairs, sorted by point."""
    count = torch.bincount(point, minlength=n)
    return torch.arange(len(point)) - (count.cumsum(0) - count)[point]
