"""Labels whose counts are spread over ranks, as the rows of their table are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int, Shaped
from torch import Tensor

from headtail.core.counts import checked_counts
from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels import Labels
from headtail.core.lookup import Table
from headtail.core.placement import Placement, Share
from headtail.errors import HeadtailError, check_number


@dataclass(frozen=True)
class Totals:
    """What all labels have in common, whichever rank holds them.

    Attributes:
        total: N, the number of training examples.
        lowest: the smallest count.
        never_seen: number of labels without a training example.
    """

    total: float
    lowest: float
    never_seen: int

    @classmethod
    def of(cls, counts: Shaped[Tensor, " n"]) -> Totals:
        """Of these counts; of no label, what changes no sum."""
        lowest = float(counts.min()) if len(counts) else math.inf
        return cls(float(counts.sum()), lowest, int((counts == 0).sum()))

    @classmethod
    def joined(cls, parts: list[Totals]) -> Totals:
        """Of all parts together."""
        return cls(
            sum(part.total for part in parts),
            min(part.lowest for part in parts),
            sum(part.never_seen for part in parts),
        )


class ShardedLabels(LabelFrequencies):
    """The counts of one rank's labels, and the totals of all: what a rank of a `ShardedLabelHead`
    knows of the label distribution.

    Look-ups take any label ids. Those of other ranks' labels are NaN: what a rank does not know, it
    need not know, because positives and negatives are weighed by the ranks that hold them.
    `headtail.distributed.count_labels` makes them.

    Args:
        counts: `[n]` of the rank's own labels, in the order of `share.labels()`.
        share: the rank's rows.
        totals: of the counts of all ranks.
        smoothing: pseudo-count added to every label in the prior.
    """

    def __init__(
        self, counts: Shaped[Tensor, " n"], share: Share, totals: Totals, smoothing: float = 0.0
    ) -> None:
        self.smoothing = check_number("smoothing", smoothing, low=0)
        self.counts = checked_counts(counts) if len(counts) else counts.long()
        if len(counts) != len(share):
            raise HeadtailError(
                f"`counts` must have one number for each of the rank's {len(share):,} labels, but "
                f"got {len(counts):,}."
            )
        if totals.total == 0:
            raise HeadtailError(
                "`counts` of all ranks are zero, so no label has a probability. Pass counts of "
                "training examples."
            )
        self.share = share
        self.totals = totals
        self.total = totals.total
        self.never_seen = totals.never_seen
        self.rarest = (totals.lowest + smoothing) / self._denominator(smoothing)
        self._table = Table(self.counts)

    @classmethod
    def part_of(cls, labels: Labels, share: Share) -> ShardedLabels:
        """The share of one rank in labels that every rank has whole."""
        own = labels.counts[share.labels().to(labels.counts.device)]
        totals = Totals(labels.total, float(labels.counts.min()), labels.never_seen)
        return cls(own, share, totals, labels.smoothing)

    def __repr__(self) -> str:
        """The same on all ranks, which compare their losses by it."""
        return f"ShardedLabels(a part of {self.num_labels:,} labels)"

    @property
    def num_labels(self) -> int:
        """L, of all ranks."""
        return self.placement.num_labels

    @property
    def placement(self) -> Placement:
        """Where the rows of all labels are."""
        return self.share.placement

    @property
    def prior(self) -> Float64[Tensor, " n"]:
        """`[n]` the prior π of the rank's own labels."""
        return (self.counts.double() + self.smoothing) / self._denominator(self.smoothing)

    def log_prior(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log π of own labels; NaN for others."""
        return self._log(ids, self.smoothing)

    def log_frequency(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log n/N of own labels, *unsmoothed*; NaN for others."""
        return self._log(ids, 0.0)

    def fixed(self) -> ShardedLabels:
        """Itself."""
        return self

    def grow(self, counts: Any) -> ShardedLabels:
        """Refused: ranks grow together."""
        raise HeadtailError("Sharded labels grow on all ranks together: write `head.grow(counts)`.")

    def to(self, device: torch.device | str) -> ShardedLabels:
        """The same labels with their counts on another device."""
        return ShardedLabels(self.counts.to(device), self.share, self.totals, self.smoothing)

    def _denominator(self, smoothing: float) -> float:
        return self.totals.total + smoothing * self.num_labels

    def _log(self, ids: Tensor, smoothing: float) -> Tensor:
        if not len(self.counts):
            return torch.full_like(ids, math.nan, dtype=torch.float64)
        places = self.share.own_places(ids.long())
        counts = self._table[places.clamp(min=0)].double()
        logs = (counts + smoothing).log() - math.log(self._denominator(smoothing))
        return logs.masked_fill(places < 0, math.nan)
