"""Targets in any form, reduced to (example, label) pairs as the paper does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from headtail.errors import HeadtailError, check_ids
from headtail.kernels.dispatch import targets_kernel

IGNORE_INDEX = -100


class Ragged(NamedTuple):
    """Label lists of different lengths in compressed form: example i has labels
    `values[offsets[i]:offsets[i + 1]]`.

    >>> Ragged.from_lists([[3, 1], [], [2]])
    Ragged(values=tensor([3, 1, 2]), offsets=tensor([0, 2, 2, 3]))
    """

    values: Int[Tensor, " p"]
    offsets: Int[Tensor, " b1"]

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """Compress a list of label lists."""
        lengths = torch.tensor([0, *map(len, lists)])
        return cls(
            torch.tensor([label for labels in lists for label in labels], dtype=torch.int64),
            lengths.cumsum(0),
        )


@dataclass(frozen=True)
class Pairs:
    r"""One row per positive label: the multi-label example $(x, \{y_1, …, y_t\})$ becomes
    $(x, y_1), …, (x, y_t)$.

    Attributes:
        label: `[p]` the positive label of each pair; where ignored, another label of the batch, so
            that a look-up touches no row that is not in use.
        example: `[p]` the row of the batch that each pair belongs to, or None where pair i is row
            i.
        skipped: `[p]` true for padding and ignored targets, which count nowhere; None where all
            are known to count.
        num_examples: b.
        positions: B and T where examples are the positions of sequences, or None.
        group: `[p]` numbers below p, the same for pairs that come together, such as the targets of
            one sequence: these are no within-batch negatives of each other. None where pairs are
            shuffled.
        share: `[p]` 1 / the number of pairs that count, 0 for the others, where a kernel has
            computed it along with them.

    >>> Pairs.of(torch.tensor([[2, 0], [1, -100]])).label
    tensor([2, 0, 1, 2])
    """

    label: Int[Tensor, " p"]
    example: Int[Tensor, " p"] | None
    skipped: Bool[Tensor, " p"] | None
    num_examples: int
    positions: tuple[int, int] | None = None
    group: Int[Tensor, " p"] | None = None
    share: Float32[Tensor, " p"] | None = None
    _below: int = field(default=0, init=False, repr=False, compare=False)
    """Its labels were seen to be below this number; 0 if unchecked."""

    @classmethod
    def of(
        cls,
        target: Target,
        *,
        num_labels: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
        name: str = "target",
    ) -> Pairs:
        """Reduce class ids, padded, ragged or nested targets to pairs, after checking them.

        With `ignore_index=None` every target counts, and none is compared.
        """
        if isinstance(target, Pairs):  # with whatever it ignores
            return target._checked_for(num_labels, name)
        flat, example, num_examples = _flattened(target, num_labels, name)
        check_ids(name, flat, None)
        # Before comparing: in uint8, −100 is 156. Kernels read labels without gaps.
        label = flat.long().contiguous()
        if _seen_to_count(label, num_labels, ignore_index):
            return cls(label, example, None, num_examples)._seen_below(num_labels)
        kernel = None if ignore_index is None else targets_kernel(label)
        if kernel is not None:
            label, skipped, share = kernel(label, ignore_index)
            check_ids(name, label, num_labels)
            pairs = cls(label, example, skipped, num_examples, share=share)
            return pairs._seen_below(num_labels)
        skipped = None if ignore_index is None else label == ignore_index
        if skipped is not None and len(label):
            first_counted = label.gather(0, (~skipped).int().argmax().reshape(1))
            label = torch.where(skipped, torch.where(skipped.all(), 0, first_counted), label)
        check_ids(name, label, num_labels)
        return cls(label, example, skipped, num_examples)._seen_below(num_labels)

    def _checked_for(self, num_labels: int | None, name: str) -> Pairs:
        """These pairs, which may have been made by hand or for other labels."""
        if self._below and (num_labels is None or self._below <= num_labels):
            return self
        own = (self.example, self.skipped, self.group, self.share)
        lengths = [self.num_examples] if self.example is None else []
        lengths += [len(part) for part in own if part is not None]
        if any(length != len(self.label) for length in lengths):
            raise HeadtailError(
                f"`{name}` has {len(self.label)} labels, but its other parts have "
                f"{', '.join(map(str, lengths))} numbers. Give one for each label."
            )
        check_ids(name, self.label, num_labels)
        return self._seen_below(num_labels)

    def _seen_below(self, num_labels: int | None) -> Pairs:
        """These pairs, which need no check for as many labels or more."""
        if not torch.compiler.is_compiling():
            object.__setattr__(self, "_below", num_labels or 0)
        return self

    @property
    def all_count(self) -> bool:
        """Whether all targets are known to count."""
        return self.skipped is None

    @property
    def ignored(self) -> Bool[Tensor, " p"]:
        """`[p]` true for padding and ignored targets, which count nowhere."""
        if self.skipped is None:
            return torch.zeros_like(self.label, dtype=torch.bool)
        return self.skipped

    @property
    def multi_label(self) -> bool:
        """Whether an example may have more than one pair."""
        return self.example is not None

    def rows(self, per_example: Tensor) -> Tensor:
        """Repeat a `[b, …]` tensor so that it has one row per pair."""
        return per_example if self.example is None else per_example[self.example]

    def example_of(self) -> Int[Tensor, " p"]:
        """The batch row of each pair."""
        if self.example is None:
            return torch.arange(len(self.label), device=self.label.device)
        return self.example


Target: TypeAlias = Tensor | Ragged | Pairs
"""`[b]` class ids, `[b, k]` padded label ids, a `Ragged`, a jagged nested tensor, a boolean matrix
`[b, L]`, or `Pairs`.
"""


def _seen_to_count(label: Tensor, num_labels: int | None, ignore_index: int | None) -> bool:
    """Whether one look shows that all targets are labels and count.

    There is none where the host would have to wait.
    """
    if not label.is_cpu or torch.compiler.is_compiling():
        return False
    array = label.numpy()
    if not len(array):
        return True
    low = array.min()
    high = array.max()
    if num_labels is not None and (low < 0 or high >= num_labels):
        return False
    may_be_there = ignore_index is not None and low <= ignore_index <= high
    return not (may_be_there and bool((array == ignore_index).any()))


def looks_multi_hot(target: Tensor) -> bool:
    """Whether a matrix of ids is more likely one of zeros and ones, one column per label."""
    if target.is_nested or target.dim() != 2 or target.shape[1] < 3 or target.dtype == torch.bool:
        return False
    if torch.compiler.is_compiling() or target.device.type != "cpu" or target.numel() == 0:
        return False
    return bool(((target == 0) | (target == 1)).all())


def _flattened(
    target: Target, num_labels: int | None, name: str
) -> tuple[Tensor, Tensor | None, int]:
    """The label of each pair, the example it belongs to (None for one each), and b."""
    if isinstance(target, Ragged):
        return _from_ragged(target, name)
    if isinstance(target, Tensor) and target.is_nested:
        if target.layout != torch.jagged:
            raise HeadtailError(
                f"`{name}` is a strided nested tensor. Build it with `layout=torch.jagged`."
            )
        ragged = Ragged(target.values(), target.offsets())  # pyright: ignore[reportAttributeAccessIssue]
        return _from_ragged(ragged, name)
    if isinstance(target, Tensor) and target.dim() == 1:
        return target, None, target.shape[0]
    if isinstance(target, Tensor) and target.dim() in (2, 3):  # [B, T, k]: of each position
        return _from_matrix(target.flatten(0, -2), num_labels, name)
    got = f"a {type(target).__name__}"
    if isinstance(target, Tensor):
        got = f"a tensor of shape {list(target.shape)}"
    raise HeadtailError(
        f"`{name}` must be label ids of shape [b], padded [b, k] or a `Ragged`, but got {got}. "
        "Write `Ragged.from_lists(lists)` for a list of lists, `torch.as_tensor(array)` for an "
        "array."
    )


def _from_matrix(
    target: Tensor, num_labels: int | None, name: str
) -> tuple[Tensor, Tensor | None, int]:
    """From a boolean matrix with one column per label, or from padded ids."""
    num_examples, width = target.shape
    if target.dtype == torch.bool:
        if num_labels not in (None, width):
            raise HeadtailError(
                f"`{name}` has {width} columns for {num_labels} labels. Give one column per label."
            )
        example, label = target.nonzero(as_tuple=True)
        return label, example, num_examples
    if width == num_labels and looks_multi_hot(target):
        raise HeadtailError(
            f"`{name}` looks like a 0/1 matrix with one column per label. Pass `{name}.bool()` to "
            "say so."
        )
    flat = target.reshape(-1)
    if width <= 1:
        return flat, None, num_examples
    example = torch.arange(num_examples, device=target.device)
    return flat, example.repeat_interleave(width, output_size=len(flat)), num_examples


def _from_ragged(target: Ragged, name: str) -> tuple[Tensor, Tensor, int]:
    values, offsets = target
    check_ids(f"{name}.values", values, None)
    check_ids(f"{name}.offsets", offsets, None)
    lengths = offsets.diff()
    # On a GPU the host would wait for these values.
    if not torch.compiler.is_compiling() and offsets.device.type == "cpu":
        well_formed = (
            values.dim() == 1
            and len(offsets) > 0
            and int(offsets[0]) == 0
            and int(offsets[-1]) == len(values)
        )
        if not well_formed or bool((lengths < 0).any()):
            raise HeadtailError(
                f"`{name}.offsets` must rise from 0 to the number of values ({len(values)}), but "
                f"got {offsets.tolist()[:8]}…. `Ragged.from_lists(lists)` builds both."
            )
    example = torch.arange(len(lengths), device=values.device).repeat_interleave(
        lengths, output_size=len(values)
    )
    return values, example, len(lengths)
