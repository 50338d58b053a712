"""Log-uniform negatives: Zipf's law without counting."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels import Labels, number_of
from headtail.errors import HeadtailError, check_ids
from headtail.samplers.fixed.inverse import InverseSampler


@final
class LogUniform(InverseSampler):
    r"""The label of rank $r = 0, 1, …$ has $q = \log\frac{r + 2}{r + 1} / \log(L + 1)$, about
    Zipf's law.

    Like sampling by frequency, it draws head labels often; with constant weights it therefore leans
    to the tail.

    Args:
        labels: their counts give the ranks; with a plain number, label ids *are* the ranks, most
            frequent first.
        num_negatives: m.
        exclude_target: draw from the other labels, separately for each example; ids are `[b, m]`.

    >>> LogUniform(100, num_negatives=5).log_q(torch.tensor([0, 99])).exp()
    tensor([0.1502, 0.0022], dtype=torch.float64)
    """

    order: Tensor | None
    rank: Tensor | None

    def __init__(
        self, labels: Labels | int, num_negatives: int, *, exclude_target: bool = False
    ) -> None:
        num_labels = number_of(labels)
        super().__init__(num_labels, num_negatives, replacement=True, exclude_target=exclude_target)
        self.total = math.log(num_labels + 1)
        if isinstance(labels, LabelFrequencies) and len(labels.counts) != num_labels:
            raise HeadtailError(
                "`LogUniform` ranks all labels by their counts, but these are the counts of one "
                "rank of a process group. Pass the number of labels, if the most frequent come "
                "first, or whole `Labels`."
            )
        order = None
        rank = None
        if isinstance(labels, LabelFrequencies) and bool((labels.counts.diff() > 0).any()):
            order = labels.counts.argsort(descending=True, stable=True)
            rank = torch.empty_like(order)
            rank[order] = torch.arange(num_labels, device=order.device)
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("rank", rank, persistent=False)

    def mass(self, ids: Tensor) -> Tensor:
        """log((r + 2) / (r + 1)), without cancellation."""
        return (1 / (self._rank(ids) + 1)).log1p()

    def below(self, ids: Tensor) -> Tensor:
        """log(r + 1)."""
        return self._rank(ids).log1p()

    def end(self, ids: Tensor) -> Tensor:
        """log(r + 2)."""
        rank = self._rank(ids)
        return torch.where(rank == self.num_labels - 1, self.total, (rank + 1).log1p())

    def label_at(self, points: Tensor) -> Tensor:
        """The rank is e^point − 1, rounded down."""
        rank = points.expm1().long().clamp_(0, self.num_labels - 1)
        if self.exclude_target:
            # The exponential rounds, so a point near the end of an interval may end up in the next
            # one: compare it with the starts of the intervals.
            rank -= (rank.double().log1p() > points).long()
            rank += ((rank + 1).double().log1p() <= points).long()
            rank.clamp_(max=self.num_labels - 1)
        return rank if self.order is None else self.order[rank]

    def for_labels(self, labels: Labels) -> LogUniform:
        """Log-uniform over the grown label set, ranked by its counts."""
        return LogUniform(labels, self.num_negatives, exclude_target=self.exclude_target)

    def _rank(self, ids: Tensor) -> Tensor:
        check_ids("ids", ids, self.num_labels)
        return (ids if self.rank is None else self.rank.to(ids.device)[ids.long()]).double()
