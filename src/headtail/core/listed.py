"""Labels that are listed for each example, in any form, reduced to (row, label) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from headtail.core.targets import Pairs, Ragged
from headtail.errors import HeadtailError, Setting

PerExample: TypeAlias = Ragged | Sequence[Sequence[int]] | Int[Tensor, "b e"]
"""Labels of each example: ragged, or padded with −1."""


class Listed(NamedTuple):
    """Pairs of a row and a label that is listed for it.

    Attributes:
        row: `[p]`.
        label: `[p]`.

    >>> pairs = Listed.of("exclude", [[1], []], 2, 3, torch.device("cpu"))
    >>> pairs.rule_out(torch.zeros(2, 3))
    tensor([[0., -inf, 0.],
            [0., 0., 0.]])
    """

    row: Int64[Tensor, " p"]
    label: Int64[Tensor, " p"]

    @classmethod
    def of(
        cls, name: str, lists: PerExample, num_rows: int, num_labels: int, device: torch.device
    ) -> Listed:
        """From any form of it, checked.

        Args:
            name: of the argument, for errors.
            lists: labels of each row.
            num_rows: b.
            num_labels: L.
            device: where the pairs go.
        """
        if not isinstance(lists, Ragged | Tensor):
            try:
                lists = Ragged.from_lists(lists)
            except (TypeError, ValueError, RuntimeError) as error:
                raise HeadtailError(
                    Setting(name),
                    " must be a list of label ids for each example, a `Ragged` or ids [b, e] "
                    f"padded with -1. Write for example `{name}=[[3, 5], []]`.",
                ) from error
        pairs = Pairs.of(lists, num_labels=num_labels, ignore_index=-1, name=name)
        if pairs.num_examples != num_rows:
            raise HeadtailError(
                Setting(name),
                f" has {pairs.num_examples:,} rows, but `hidden` {num_rows:,}. Give a list for "
                "each example, [] for none.",
            )
        counts = ~pairs.ignored
        return cls(pairs.example_of()[counts].to(device), pairs.label[counts].to(device))

    def rule_out(
        self, scores: Float[Tensor, "b block"], first: int = 0
    ) -> Float[Tensor, "b block"]:
        """Set the scores of these pairs to −∞, in place; column 0 is label `first`."""
        column = self.label - first
        here = (column >= 0) & (column < scores.shape[1])
        scores[self.row[here], column[here]] = -torch.inf
        return scores

    def within(self, labels: slice) -> Listed:
        """The pairs of these labels, which are counted from the first of them on.

        >>> Listed(torch.tensor([1, 0, 1]), torch.tensor([2, 4, 3])).within(slice(3, 5))
        Listed(row=tensor([0, 1]), label=tensor([1, 0]))
        """
        here = (self.label >= labels.start) & (self.label < labels.stop)
        return Listed(self.row[here], self.label[here] - labels.start)

    def distinct(self, num_labels: int, but: Listed | None = None) -> Listed:
        """Every pair once, by row and label, without those of `but`.

        >>> Listed(torch.tensor([1, 0, 1]), torch.tensor([2, 4, 2])).distinct(5)
        Listed(row=tensor([0, 1]), label=tensor([4, 2]))
        """
        number = (self.row * num_labels + self.label).unique()
        if but is not None:
            number = number[~torch.isin(number, but.row * num_labels + but.label)]
        return Listed(number // num_labels, number % num_labels)
