"""Labels: how often each label occurs, and the prior that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from headtail.core.columns import Names, as_target
from headtail.core.counts import LARGEST_INT, as_counts, checked_counts, widened_counts
from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels_html import describe_labels, labels_html
from headtail.core.lookup import Table
from headtail.core.names import (
    check_names,
    counted_names,
    ids_of,
    index_of,
    joined_names,
    saved_names,
)
from headtail.core.targets import IGNORE_INDEX, Pairs, Ragged, Target, looks_multi_hot
from headtail.errors import (
    HeadtailError,
    check_count,
    check_ids,
    check_kind,
    check_number,
)
from headtail.files.tensors import as_bytes, load_tensors, save_tensors

KEPT_LOGARITHMS = 2**24
"""Labels up to which all logarithms of the prior are kept, in 128 MiB."""


@final
@dataclass(frozen=True, eq=False, repr=False)
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
        names: the name of each label, strings or whole numbers, or None where ids are the names.

    >>> labels = Labels.from_counts([70, 20, 10])
    >>> labels
    Labels(3 labels, 100 examples, 10 to 70 per label)
    >>> labels.prior
    tensor([0.7000, 0.2000, 0.1000], dtype=torch.float64)
    >>> Labels.from_counts([3, 1, 0], smoothing=1).prior.tolist()
    [0.5714285714285714, 0.2857142857142857, 0.14285714285714285]
    """

    counts: Tensor
    smoothing: float = 0.0
    names: Names | None = None
    total: float = field(init=False)
    """N, the number of training examples."""
    rarest: float = field(init=False)
    """The smallest prior, min π."""
    never_seen: int = field(init=False)
    """Number of labels without a single training example."""
    _table: Table = field(init=False)
    _logs: dict[float, Table] = field(default_factory=dict, init=False)
    _index: dict[str | int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, low=0)
        counts = checked_counts(self.counts)
        check_names(self.names, len(counts))
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
    def from_counts(cls, counts: Any, smoothing: float = 0.0, names: Names | None = None) -> Labels:
        """From the number of training examples of each label: a list, array or tensor of shape
        `[L]`.
        """
        return cls(as_counts(counts), smoothing, names)

    @classmethod
    def from_column(cls, column: Any, smoothing: float = 0.0) -> Labels:
        """From a column of strings or whole numbers, or of lists of them for several labels per
        row: its different values become the names of the labels, in sorted order (categories of
        pandas keep their own).

        `labels.ids(column)` turns the column, or another one, into targets, and `labels.names[i]`
        is the name of label i. Missing values are refused; an empty or missing list is a row
        without labels.

        Args:
            column: a list, numpy array, tensor, pandas or polars series, Arrow array or chunked
                array.
            smoothing: pseudo-count added to every label in the prior.

        >>> labels = Labels.from_column(["dog", "cat", "dog"])
        >>> labels.names, labels.counts.tolist(), labels.ids(["dog", "cat"]).tolist()
        (['cat', 'dog'], [1, 2], [1, 0])
        """
        names, counts = counted_names(column)
        return cls(torch.from_numpy(counts), smoothing, names)

    @classmethod
    def from_targets(
        cls,
        target: Any,
        num_labels: int | None = None,
        smoothing: float = 0.0,
        ignore_index: int = IGNORE_INDEX,
    ) -> Labels:
        """From training targets, which are label ids: `[N]`, padded `[N, k]`, ragged, or a boolean
        multi-hot matrix `[N, L]`.

        Args:
            target: a tensor, a `Ragged`, a list (of lists), a numpy array, a pandas or polars
                series, an Arrow array, or a scipy sparse matrix with a column for each label. For
                strings, see `from_column`.
            num_labels: L; by default the largest id + 1, or the columns of a matrix.
            smoothing: pseudo-count added to every label in the prior.
            ignore_index: an id that counts nowhere.

        >>> Labels.from_targets([[0, 2], [2], []]).counts
        tensor([1, 0, 2])

        >>> Labels.from_targets(torch.tensor([[0, 2], [2, -100]]), num_labels=4).counts
        tensor([1, 0, 2, 0])
        """
        if num_labels is None and hasattr(target, "tocsr"):
            num_labels = target.shape[1]
        target = as_target(target)
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
                as_target(batch), num_labels=num_labels, ignore_index=ignore_index, name="batches"
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

    def update(self, target: Any, ignore_index: int = IGNORE_INDEX) -> Labels:
        """New `Labels` with the examples of `target` added; for many small batches, `from_batches`
        copies less.

        >>> Labels.from_counts([1, 1]).update(torch.tensor([1, 1])).counts
        tensor([1, 3])
        """
        added = _count(as_target(target), self.num_labels, ignore_index).to(self.counts.device)
        counts = self.counts
        if not counts.is_floating_point() and int(counts.max()) + int(added.max()) > LARGEST_INT:
            counts = counts.double()
        return Labels(counts + added, self.smoothing, self.names)

    def grow(self, counts: Any, names: Names | None = None) -> Labels:
        """New `Labels` with more labels behind the old ones, which keep their ids.

        Args:
            counts: of the new labels.
            names: of the new labels, where the old ones have names.

        >>> Labels.from_counts([5, 1]).grow([2]).counts
        tensor([5, 1, 2])
        """
        added = as_counts(counts)
        if added.dim() != 1:
            raise HeadtailError(
                f"`counts` must be one number per new label, but got shape {list(added.shape)}."
            )
        added = widened_counts(added).to(self.counts.device)
        longer = joined_names(self.names, names, len(added))
        return Labels(torch.cat([self.counts, added]), self.smoothing, longer)

    def ids(self, column: Any, unknown: int | None = None) -> Int64[Tensor, " n"] | Ragged:
        """The ids of a column of names: `[n]`, or a `Ragged` for a column of lists.

        Args:
            column: as for `from_column`.
            unknown: the id of values that are missing or not among the names, for example −100,
                which losses ignore; by default such values are refused.

        >>> labels = Labels.from_column(["dog", "cat", "dog"])
        >>> labels.ids([["dog"], [], ["cat", "dog"]])
        Ragged(values=tensor([1, 0, 1]), offsets=tensor([0, 1, 1, 3]))
        >>> labels.ids(["dog", "cow"], unknown=-100)
        tensor([   1, -100])
        """
        if not self._index:
            self._index.update(index_of(self.names))
        return ids_of(column, self._index, unknown)

    def save(self, path: str | Path) -> None:
        """Write counts, smoothing and names to a safetensors file, whole or not at all."""
        tensors = {"counts": self.counts.cpu(), "names": as_bytes(self.names)}
        save_tensors(Path(path), tensors, {"kind": "labels", "smoothing": self.smoothing})

    @classmethod
    def load(cls, path: str | Path) -> Labels:
        """The labels that `save` wrote."""
        advice = "Write it again with `labels.save(path)`."
        tensors, facts = load_tensors(Path(path), "labels", advice)
        if facts.get("kind") != "labels":
            raise HeadtailError(f"`{path}` does not hold labels. {advice}")
        if not {"counts", "names"} <= tensors.keys() or "smoothing" not in facts:
            raise HeadtailError(f"`{path}` is damaged: it lacks counts or names. {advice}")
        counts = tensors["counts"]
        try:
            names = saved_names(tensors["names"], counts.shape[0] if counts.dim() else 0)
            return cls(counts, facts["smoothing"], names)
        except HeadtailError as error:
            raise HeadtailError(f"`{path}` is damaged: {error} {advice}") from error

    def __repr__(self) -> str:
        return f"Labels({describe_labels(self)})"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return labels_html(self, describe_labels(self), self.names)

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
        return Labels(self.counts.to(device), self.smoothing, self.names)


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
