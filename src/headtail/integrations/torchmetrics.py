"""Metrics by head, torso and tail for torchmetrics, and so for Lightning and others.

All states are sums, so that batches and processes add up to the numbers of `headtail.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final
from zlib import crc32

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.core.columns import as_target
from headtail.core.labels import Labels, check_labels
from headtail.core.slices import NAMES, Slices
from headtail.core.topk import TopK
from headtail.errors import HeadtailError, Setting, check_count, check_kind, check_num_labels, need
from headtail.metrics import (
    Ranked,
    Ratio,
    hit_rate,
    inverse_propensity,
    mrr,
    ndcg,
    precision,
    psp,
    recall,
)
from headtail.metrics.ranked import members_of, pairs_on_cpu
from headtail.metrics.ratios import check_ranking

if TYPE_CHECKING:
    from torchmetrics import Metric
else:
    Metric = need("torchmetrics", extra="torchmetrics", to="A metric by slice").Metric


SLICES = ("full", *NAMES)


class SliceMetric(Metric):
    """A metric of the first k labels, by slice: "full", "head", "torso" and "tail".

    A slice is NaN as long as no target decides it.

    Args:
        slices: head, torso and tail, for example `labels.slices()`.
        k: how many of the best labels count.
        **options: of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, slices: Slices, k: int = 10, **options: Any) -> None:
        check_kind("slices", slices, Slices, "labels.slices()")
        super().__init__(**options)
        self.slices = Slices(slices.of_label.cpu(), slices.rule)
        self.k = check_count("k", k)
        # A MetricCollection lets metrics share states that are equal after the first batch. Names
        # keep those apart that may differ later: recall@1 and recall@10, or other slices.
        slicing = crc32(self.slices.of_label.numpy().tobytes())
        kind = f"{type(self).__name__}_{self.k}_{slicing:08x}"
        self._names = (f"{kind}_above", f"{kind}_below")
        for name in self._names:
            default = torch.zeros(self._size, dtype=torch.float64)
            self.add_state(name, default, dist_reduce_fx="sum")

    @property
    def _size(self) -> int:
        """The length of a state."""
        return len(SLICES)

    def update(self, top: Int[Tensor, "n K"] | TopK, target: Any) -> None:
        """Add a batch.

        Args:
            top: `[n, K]` the best labels of each point, best first, or what `head.topk` returns;
                −1 where there is none.
            target: the labels of the same points, in any form that losses take: `[n]` ids, padded
                `[n, j]` ids, a `Ragged`, lists, a boolean `[n, L]` matrix; −100 counts nowhere.
        """
        self._add(self._ranked(top, target))

    def _ranked(self, top: Int[Tensor, "n K"] | TopK, target: Any) -> Ranked:
        top = top.indices if isinstance(top, tuple) else top
        check_kind("top", top, Tensor, "head.topk(hidden, 10).indices")
        top = top.cpu()
        num_labels = len(self.slices.of_label)
        pairs = pairs_on_cpu(as_target(target), num_labels, "target")
        check_ranking(top, pairs.num_examples, num_labels)
        if top.shape[1] < min(self.k, num_labels):
            raise HeadtailError(
                Setting("top"),
                f" holds {top.shape[1]} labels per point, but this metric looks at the first "
                f"{self.k}. Write for example `head.topk(hidden, {self.k})`.",
            )
        return Ranked.of(top, pairs, num_labels)

    def _add(self, ranked: Ranked) -> None:
        """Add a batch above and below the line."""
        parts = [self._ratio(part) for part in ranked.by_slice(self.slices)]
        above, below = self._states
        above += torch.stack([part.numerator.sum() for part in parts]).to(above.device)
        below += torch.stack([part.denominator.sum() for part in parts]).to(below.device)

    @property
    def _states(self) -> tuple[Tensor, Tensor]:
        above, below = self._names
        return getattr(self, above), getattr(self, below)

    def _ratio(self, ranked: Ranked) -> Ratio:
        """The metric of some pairs."""
        raise NotImplementedError

    def compute(self) -> dict[str, Tensor]:
        """The metric of each slice."""
        above, below = self._states
        return dict(zip(SLICES, above / below, strict=True))


@final
class RecallAtK(SliceMetric):
    """The share of targets among the first k, see `headtail.metrics.recall`.

    >>> labels = Labels.from_counts([300, 30, 3])
    >>> metric = RecallAtK(labels.slices(), k=1)
    >>> metric.update(torch.tensor([[0, 1], [0, 2]]), torch.tensor([0, 2]))
    >>> {name: value.item() for name, value in metric.compute().items()}
    {'full': 0.5, 'head': 1.0, 'torso': nan, 'tail': 0.0}
    """

    higher_is_better = True

    def _ratio(self, ranked: Ranked) -> Ratio:
        return recall(ranked, self.k)


@final
class HitRateAtK(SliceMetric):
    """The share of points with a target among the first k, see `headtail.metrics.hit_rate`."""

    higher_is_better = True

    def _ratio(self, ranked: Ranked) -> Ratio:
        return hit_rate(ranked, self.k)


@final
class MRRAtK(SliceMetric):
    """1/rank of a point's first target, see `headtail.metrics.mrr`."""

    higher_is_better = True

    def _ratio(self, ranked: Ranked) -> Ratio:
        return mrr(ranked, self.k)


@final
class NDCGAtK(SliceMetric):
    """Normalised discounted gain of the first k, see `headtail.metrics.ndcg`."""

    higher_is_better = True

    def _ratio(self, ranked: Ranked) -> Ratio:
        return ndcg(ranked, self.k)


@final
class PrecisionAtK(SliceMetric):
    """The share of the first k that are targets, see `headtail.metrics.precision`."""

    higher_is_better = True

    def _ratio(self, ranked: Ranked) -> Ratio:
        return precision(ranked, self.k)


@final
class PSPAtK(SliceMetric):
    """Propensity-scored precision of the first k, see `headtail.metrics.psp`.

    Args:
        slices: head, torso and tail.
        k: how many of the best labels count.
        labels: label counts of the training set.
        num_points: N, the number of training points; by default the number of training examples,
            which is the same where every point has one label.
        propensity: A and B of the propensity model, see `headtail.metrics.inverse_propensity`.
        **options: of `torchmetrics.Metric`.
    """

    higher_is_better = True

    def __init__(
        self,
        slices: Slices,
        k: int = 5,
        *,
        labels: Labels,
        num_points: int | None = None,
        propensity: tuple[float, float] = (0.55, 1.5),
        **options: Any,
    ) -> None:
        super().__init__(slices, k, **options)
        check_labels(labels)
        check_num_labels("slices", len(slices.of_label), "`labels` has", labels.num_labels)
        points = int(labels.total) if num_points is None else num_points
        self.inverse = inverse_propensity(labels, points, propensity)

    def _ratio(self, ranked: Ranked) -> Ratio:
        return psp(ranked, self.inverse, self.k)


class LabelMetric(SliceMetric):
    """A mean over the labels that are targets, so its states have one number per label."""

    @property
    def _size(self) -> int:
        return len(self.slices.of_label)

    def _add(self, ranked: Ranked) -> None:
        hits, pairs = self._states
        label = ranked.label.to(hits.device)
        hit = ranked.hit(self.k).to(hits.device)
        hits.index_add_(0, label, hit)  # never all labels, of which there may be many
        pairs.index_add_(0, label, torch.ones_like(hit))

    def compute(self) -> dict[str, Tensor]:
        """The metric of each slice."""
        return dict(self._means())

    def _means(self) -> Iterator[tuple[str, Tensor]]:
        hits, pairs = self._states
        for name, members in members_of(self.slices).items():
            known = members.to(pairs.device) & (pairs > 0)
            yield name, (hits[known] / pairs[known]).mean()


@final
class MacroRecallAtK(LabelMetric):
    """The mean over labels of their own recall@k."""

    higher_is_better = True


@final
class BalancedError(LabelMetric):
    """1 − the mean over labels of their own recall@1.

    >>> labels = Labels.from_counts([300, 30, 3])
    >>> metric = BalancedError(labels.slices())
    >>> metric.update(torch.tensor([[0], [0], [0]]), torch.tensor([0, 0, 2]))
    >>> metric.compute()["full"].item()
    0.5
    """

    higher_is_better = False

    def __init__(self, slices: Slices, **options: Any) -> None:
        super().__init__(slices, 1, **options)

    def compute(self) -> dict[str, Tensor]:
        """The error of each slice."""
        return {name: 1 - mean for name, mean in self._means()}
