"""Slices: which labels are head, torso and tail."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtail.errors import HeadtailError, check_number

NAMES = ("head", "torso", "tail")


@dataclass(frozen=True)
class Slices:
    """A split of the labels into head, torso and tail.

    Attributes:
        of_label: `[L]` 0 for head, 1 for torso, 2 for tail.
        rule: how the split was made, in words.

    >>> slices = Slices.by_count(torch.tensor([500, 30, 4]))
    >>> slices.sizes
    {'head': 1, 'torso': 1, 'tail': 1}
    >>> slices.tail
    tensor([False, False,  True])
    """

    of_label: Int[Tensor, " L"]
    rule: str

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
        """Head: the most frequent labels that together hold the share `head` of the examples; torso
        the next; tail the rest.

        Labels of equal count always share a slice: what decides is the mass held by *strictly* more
        frequent labels.
        """
        check_number("head", head, low=0, high=1)
        check_number("torso", torso, low=0, high=1)
        if head + torso > 1:
            raise HeadtailError(
                "`head` and `torso` are shares of the examples and sum to at most 1, but got "
                f"{head} + {torso}."
            )
        values, index = torch.unique(counts, return_inverse=True)
        held = values.double() * torch.bincount(index, minlength=len(values)).double()
        total = held.sum().clamp(min=torch.finfo(torch.float64).tiny)
        above = (held.sum() - held.cumsum(0)) / total
        # A boundary hit exactly belongs to the rarer slice; the guard keeps rounding in the sums
        # from deciding it.
        guard = 1e-12
        below_head = (above >= head - guard).to(torch.int8)
        below_torso = (above >= head + torso - guard).to(torch.int8)
        shares = f"head: the first {head:.0%} of the examples, torso: the next {torso:.0%}"
        return cls((below_head + below_torso)[index], f"{shares}, tail: the rest")

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
