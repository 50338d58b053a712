"""Labels: how often each label occurs, and the prior that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.counts import LARGEST_INT, as_counts, checked_counts, widened_counts
from headtail.core.frequencies import LabelFrequencies
from headtail.core.lookup import Table
from headtail.core.targets import IGNORE_INDEX, Pairs, Target, looks_multi_hot
from headtail.errors import (
    HeadtailError,
    check_count,
    check_ids,
    check_kind,
    check_number,
)

KEPT_LOGARITHMS = 2**24
"""Labels up to which all logarithms of the prior are kept, in 128 MiB."""


@final
@dataclass(frozen=True, eq=False)
class Labels(LabelFrequencies):
    r"""The label distribution: counts, and the prior

    $$\pi_y = \frac{n_y + s}{\sum_{y'} (n_{y'} + s)},$$

    with counts $n$ and smoothing $s$, which is 0 unless you ask for it. A label that never occurs
    then has $\pi_y = 0$, and whatever needs a positive prior says so instead of inventing one.
    `Labels` is a value: to add data, make a new one.

    Args:
        counts: `[L]` examples per label, as int64 or float64; those are kept as passed, never
            copied, and others are widened.
        smoothing: pseudo-count added to every label in the prior (not in `log_frequency`, which is
            what batches follow).

    >>> labels = Labels.from_counts([70, 20, 10])
    >>> labels.prior
    tensor([0.7000, 0.2000, 0.1000], dtype=torch.float64)
    >>> Labels.from_counts([3, 1, 0], smoothing=1).prior.tolist()
    [0.5714285714285714, 0.2857142857142857, 0.14285714285714285]
    """

    counts: Tensor
    smoothing: float = 0.0
    total: float = field(init=False, repr=False)
    """N, the number of training examples."""
    rarest: float = field(init=False, repr=False)
    """The smallest prior, min π."""
    never_seen: int = field(init=False, repr=False)
    """Number of labels without a single training example."""
    _table: Table = field(init=False, repr=False)
    _logs: dict[float, Table] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, low=0)
        counts = checked_counts(self.counts)
        low, high = counts.aminmax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise HeadtailError(
                "`counts` must be finite, but some are NaN or infinite. Count again, or drop those "
                "labels."
            )
        if bool(low < 0):
            raise HeadtailError(
                f"`counts` must not be negative, but label {int(counts.argmin())} has "
                f"{low.item():g}."
            )
        # Whole numbers are summed exactly where int64 holds the sum.
        exact = not counts.is_floating_point() and int(high) * len(counts) <= LARGEST_INT
        total = float(counts.sum(dtype=None if exact else torch.float64))
        if total == 0:
            raise HeadtailError(
                "`counts` are all zero, so no label has a probability. Pass counts of training "
                "examples."
            )
        if math.isinf(total):
            raise HeadtailError(
                "`counts` have a sum beyond the largest float64, 1.8e308. Divide them all by the "
                "same number."
            )
        derived = {
            "counts": counts,
            "total": total,
            "rarest": (float(low) + self.smoothing) / (total + self.smoothing * len(counts)),
            "never_seen": int((counts == 0).sum()) if float(low) == 0 else 0,
            "_table": Table(counts),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_counts(cls, counts: Any, smoothing: float = 0.0) -> Labels:
        """From the number of training examples of each label: a list, array or tensor of shape
        `[L]`.
        """
        return cls(as_counts(counts), smoothing)

    @classmethod
    def from_targets(
        cls,
        target: Target,
        num_labels: int | None = None,
        smoothing: float = 0.0,
        ignore_index: int = IGNORE_INDEX,
    ) -> Labels:
        """From training targets: `[N]` ids, padded `[N, k]` ids, a `Ragged`, or a boolean multi-hot
        matrix `[N, L]`.

        >>> Labels.from_targets(torch.tensor([[0, 2], [2, -100]]), num_labels=4).counts
        tensor([1, 0, 2, 0])
        """
        if isinstance(target, Tensor) and looks_multi_hot(target):
            raise HeadtailError(
                "`target` looks like a 0/1 matrix with one column per label. Pass "
                "`target.bool()` to say so."
            )
        if isinstance(target, Tensor) and target.dtype == torch.bool and target.dim() == 2:
            num_labels = num_labels or target.shape[1]
        return cls(_count(target, num_labels, ignore_index), smoothing)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Target],
        num_labels: int,
        smoothing: float = 0.0,
        ignore_index: int = IGNORE_INDEX,
    ) -> Labels:
        """From a stream of target batches, holding nothing but the counts.

        >>> Labels.from_batches((torch.tensor([0, 1]) for _ in range(3)), num_labels=2).counts
        tensor([3, 3])
        """
        counts = torch.zeros(check_count("num_labels", num_labels), dtype=torch.int64)
        for batch in batches:
            pairs = Pairs.of(
                batch, num_labels=num_labels, ignore_index=ignore_index, name="batches"
            )
            seen = pairs.label[~pairs.ignored].cpu()
            counts.index_add_(0, seen, torch.ones_like(seen))
        return cls(counts, smoothing)

    @classmethod
    def zipf(cls, num_labels: int, exponent: float = 1.0, rarest: int = 10) -> Labels:
        """A generated long tail: the label of rank r has about `rarest · (L / r)^exponent`
        examples.

        >>> Labels.zipf(5).counts
        tensor([50, 25, 17, 12, 10])
        """
        check_count("num_labels", num_labels)
        check_number("exponent", exponent, low=0)
        rank = torch.arange(1, num_labels + 1, dtype=torch.float64)
        return cls((check_count("rarest", rarest) * (num_labels / rank) ** exponent).round().long())

    def update(self, target: Target, ignore_index: int = IGNORE_INDEX) -> Labels:
        """New `Labels` with the examples of `target` added; for many small batches, `from_batches`
        copies less.

        >>> Labels.from_counts([1, 1]).update(torch.tensor([1, 1])).counts
        tensor([1, 3])
        """
        added = _count(target, self.num_labels, ignore_index).to(self.counts.device)
        counts = self.counts
        if not counts.is_floating_point() and int(counts.max()) + int(added.max()) > LARGEST_INT:
            counts = counts.double()
        return Labels(counts + added, self.smoothing)

    def grow(self, counts: Any) -> Labels:
        """New `Labels` with more labels behind the old ones, which keep their ids.

        >>> Labels.from_counts([5, 1]).grow([2]).counts
        tensor([5, 1, 2])
        """
        added = as_counts(counts)
        if added.dim() != 1:
            raise HeadtailError(
                f"`counts` must be one number per new label, but got shape {list(added.shape)}."
            )
        added = widened_counts(added).to(self.counts.device)
        return Labels(torch.cat([self.counts, added]), self.smoothing)

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.counts)

    @property
    def prior(self) -> Float64[Tensor, " L"]:
        """`[L]` the smoothed prior π."""
        total = self.total + self.smoothing * self.num_labels
        return (self.counts.double() + self.smoothing) / total

    def log_prior(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log π of any labels. A look-up, so it costs O(ids) whatever L is."""
        return self._log(ids, self.smoothing)

    def log_frequency(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log n/N of any labels, *unsmoothed*: how often batches really hold them."""
        return self._log(ids, 0.0)

    def _log(self, ids: Int[Tensor, ...], smoothing: float) -> Float64[Tensor, ...]:
        """log (n + smoothing) / total. Unless there are very many labels, all logarithms are kept,
        so that a step computes none.
        """
        total = math.log(self.total + smoothing * self.num_labels)
        if self.num_labels > KEPT_LOGARITHMS or torch.compiler.is_compiling():
            return (self._table[ids].double() + smoothing).log() - total
        if smoothing not in self._logs:
            self._logs[smoothing] = Table((self.counts.double() + smoothing).log() - total)
        return self._logs[smoothing][ids]

    def fixed(self) -> Labels:
        """Itself."""
        return self

    def to(self, device: torch.device | str) -> Labels:
        """The same labels with their counts on another device. Look-ups follow their ids, so this
        is rarely needed.
        """
        if self.counts.device == torch.device(device):
            return self
        return Labels(self.counts.to(device), self.smoothing)


def check_labels(labels: LabelFrequencies) -> None:
    """Refuse anything but label frequencies."""
    if not isinstance(labels, LabelFrequencies):
        check_kind("labels", labels, Labels, "Labels.from_counts(counts)")


def number_of(labels: LabelFrequencies | int) -> int:
    """L, of labels or of just their number."""
    if isinstance(labels, LabelFrequencies):
        return labels.num_labels
    if hasattr(labels, "__len__"):
        got = type(labels).__name__
        raise HeadtailError(
            f"`labels` must be Labels or their number, but got {got}. Write for example "
            "`Labels.from_counts(counts)`."
        )
    return check_count("num_labels", labels)


def _count(target: Target, num_labels: int | None, ignore_index: int) -> Tensor:
    pairs = Pairs.of(target, num_labels=num_labels, ignore_index=ignore_index)
    seen = pairs.label[~pairs.ignored]
    check_ids("target", seen, LARGEST_INT if num_labels is None else num_labels)
    return torch.bincount(seen, minlength=num_labels or 0)
