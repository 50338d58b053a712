"""Slices: which labels are head, torso and tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtail.core.html import HtmlCell, frame, percent, table
from headtail.errors import HeadtailError, check_choice, check_number

NAMES = ("head", "torso", "tail")
SliceRule = Literal["auto", "mass", "count"]
"""How labels are divided; auto: by count for classification, by mass otherwise."""


@dataclass(frozen=True, repr=False)
class Slices:
    """A split of the labels into head, torso and tail.

    Attributes:
        of_label: `[L]` 0 for head, 1 for torso, 2 for tail.
        rule: how the split was made, in words.

    >>> slices = Slices.by_count(torch.tensor([500, 30, 4]))
    >>> slices
    Slices(head 1, torso 1, tail 1 of 3 labels; head: at least 100 examples, tail: fewer than 20)
    >>> slices.sizes
    {'head': 1, 'torso': 1, 'tail': 1}
    >>> slices.tail
    tensor([False, False,  True])
    """

    of_label: Int[Tensor, " L"]
    rule: str

    @classmethod
    def by(cls, rule: SliceRule, counts: Tensor, *, classification: bool = False) -> Slices:
        """Slices by the name of a rule, with its usual bounds.

        Args:
            rule: "mass", "count", or "auto": by count for classification, otherwise by mass.
            counts: `[L]` training examples of each label.
            classification: whether points are images or vectors with one label each.
        """
        check_choice("slices", rule, ("auto", "mass", "count"))
        by_count = classification if rule == "auto" else rule == "count"
        return cls.by_count(counts) if by_count else cls.by_mass(counts)

    @classmethod
    def by_count(cls, counts: Tensor, head: float = 100, tail: float = 20) -> Slices:
        """Head: at least `head` training examples; tail: fewer than `tail`; torso: between. The
        long-tail study's rule.
        """
        check_number("tail", tail, low=0)
        check_number("head", head, low=tail)
        of_label = (
            torch.ones_like(counts, dtype=torch.int8)
            .masked_fill_(counts >= head, 0)
            .masked_fill_(counts < tail, 2)
        )
        return cls(of_label, f"head: at least {head:g} examples, tail: fewer than {tail:g}")

    @classmethod
    def by_mass(cls, counts: Tensor, head: float = 1 / 3, torso: float = 1 / 3) -> Slices:
        """Head: the most frequent labels that together hold about the share `head` of the examples;
        torso the next; tail the rest.

        Labels of equal count always share a slice: what decides is the mass held by *strictly* more
        frequent labels. The label that crosses a boundary still belongs to the more frequent slice,
        so shares differ somewhat from those asked for; `describe` has them.
        """
        check_number("head", head, low=0, high=1)
        check_number("torso", torso, low=0, high=1)
        if head + torso > 1:
            raise HeadtailError(
                "`head` and `torso` are shares of the examples and sum to at most 1, but got "
                f"{head} + {torso}."
            )
        values, index = torch.unique(counts, return_inverse=True)
        numbers = torch.bincount(index, minlength=len(values))
        shares = "a third of the examples each"
        if (head, torso) != (1 / 3, 1 / 3):
            shares = f"{head:.0%}, {torso:.0%} and the rest of the examples"
        rule = f"about {shares}, labels of equal count together"
        return cls(slice_of_counts(values, numbers, head, torso)[index], rule)

    @property
    def head(self) -> Bool[Tensor, " L"]:
        """`[L]` true for head labels."""
        return self.of_label == 0

    @property
    def torso(self) -> Bool[Tensor, " L"]:
        """`[L]` true for torso labels."""
        return self.of_label == 1

    @property
    def tail(self) -> Bool[Tensor, " L"]:
        """`[L]` true for tail labels."""
        return self.of_label == 2

    @property
    def sizes(self) -> dict[str, int]:
        """Number of labels in each slice."""
        sizes = torch.bincount(self.of_label.int(), minlength=3).tolist()
        return dict(zip(NAMES, sizes, strict=True))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        return f"Slices({sizes} of {len(self.of_label):,} labels; {self.rule})"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        total = len(self.of_label)
        shares = {name: size / max(total, 1) for name, size in self.sizes.items()}
        rows = [
            [name, f"{size:,}", HtmlCell(percent(shares[name]), shares[name])]
            for name, size in self.sizes.items()
        ]
        body = table(["slice", "labels", "share of all labels"], rows)
        return frame("Slices", f"of {total:,} labels: {self.rule}", body)

    def examples(self, counts: Tensor) -> dict[str, float]:
        """Training examples of each slice, given those of each label."""
        return {name: counts[getattr(self, name)].sum().item() for name in NAMES}

    def describe(self, counts: Tensor) -> str:
        """How many labels and which share of the examples each slice really has, and the rule.

        >>> counts = torch.tensor([50, 40, 5, 5])
        >>> print(Slices.by_mass(counts).describe(counts))
        head 1 label (50% of the examples), torso 1 label (40%), tail 2 labels (10%); about a
        third of the examples each, labels of equal count together
        """
        return f"{describe_slices(self.sizes, self.examples(counts))}; {self.rule}"


def describe_slices(sizes: dict[str, int], examples: dict[str, float]) -> str:
    """The number of labels and the share of the examples of each slice, in words."""
    total = max(sum(examples.values()), 1)
    parts = []
    for name, size in sizes.items():
        labels = "1 label" if size == 1 else f"{size:,} labels"
        of = " of the examples" if not parts else ""
        parts.append(f"{name} {labels} ({examples[name] / total:.0%}{of})")
    return ", ".join(parts)


def slice_of_counts(
    values: Tensor, numbers: Tensor, head: float = 1 / 3, torso: float = 1 / 3
) -> Int[Tensor, " v"]:
    """`[v]` the slice by mass, 0, 1 or 2, of labels with each of these counts.

    Args:
        values: `[v]` the different counts, in ascending order.
        numbers: `[v]` how many labels have each.
        head: share of the examples.
        torso: share of the examples.
    """
    held = values.double() * numbers.double()
    total = held.sum().clamp(min=torch.finfo(torch.float64).tiny)
    above = (held.sum() - held.cumsum(0)) / total
    # A boundary hit exactly belongs to the rarer slice; the guard keeps rounding in the sums from
    # deciding it.
    guard = 1e-12
    below_head = (above >= head - guard).to(torch.int8)
    below_torso = (above >= head + torso - guard).to(torch.int8)
    return below_head + below_torso
