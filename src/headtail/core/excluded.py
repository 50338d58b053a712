"""Labels that must not be answered, in any form, reduced to (row, label) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from headtail.core.targets import Pairs, Ragged
from headtail.errors import HeadtailError

Exclude: TypeAlias = Ragged | Sequence[Sequence[int]] | Int[Tensor, "b e"]
"""Labels of each example that must not be answered: ragged, or padded with −1."""


class Excluded(NamedTuple):
    """Pairs of a row and a label that it must not be answered with.

    Attributes:
        row: `[p]`.
        label: `[p]`.

    >>> pairs = Excluded.of([[1], []], 2, 3, torch.device("cpu"))
    >>> pairs.rule_out(torch.zeros(2, 3))
    tensor([[0., -inf, 0.],
            [0., 0., 0.]])
    """

    row: Int64[Tensor, " p"]
    label: Int64[Tensor, " p"]

    @classmethod
    def of(cls, exclude: Exclude, num_rows: int, num_labels: int, device: torch.device) -> Excluded:
        """From any form of it, checked.

        Args:
            exclude: labels of each row.
            num_rows: b.
            num_labels: L.
            device: where the pairs go.
        """
        if not isinstance(exclude, Ragged | Tensor):
            try:
                exclude = Ragged.from_lists(exclude)
            except (TypeError, ValueError) as error:
                raise HeadtailError(
                    "`exclude` must be a list of label ids for each example, a `Ragged` or ids "
                    "[b, e] padded with -1. Write for example `exclude=[[3, 5], []]`."
                ) from error
        pairs = Pairs.of(exclude, num_labels=num_labels, ignore_index=-1, name="exclude")
        if pairs.num_examples != num_rows:
            raise HeadtailError(
                f"`exclude` has {pairs.num_examples:,} rows, but `hidden` {num_rows:,}. Give a "
                "list for each example, [] for none."
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
