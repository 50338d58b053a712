"""Negatives of minimum variance for the loss that is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Margin, Separable, check_margin
from headtail.core.pieces import Piece
from headtail.samplers.claims import Claims
from headtail.samplers.model.by_score import OnePassSampler


@final
class Tilted(OnePassSampler):
    r"""The q of minimum variance for a margin ρ: $q^*_{y'} \propto \rho_{yy'}\, e^{f_{y'}}$ for the
    softmax, $\propto \rho_{yy'}\, |\varphi(-f_{y'})|$ for decoupled losses.

    With weights from the same margin (`FromMargin(margin)`) and the positive excluded, the sampled
    loss has no variance where φ keeps one sign: each negative counts alike. It leans as the margin
    does. A draw costs one pass over the label table.

    A label with ρ = 0 or φ = 0 is never drawn; where all are, the negative term is 0 and labels are
    drawn uniformly.

    Args:
        labels: the labels, or just their number.
        num_negatives: m.
        margin: ρ, that of the weights: `Tail(labels).margin`, or what `FromMargin` got.
        piece: of the decoupled loss; None for the softmax.
        exclude_target: draw from the other labels only; else a draw that hits the positive is
            masked in the loss.

    >>> import torch
    >>> from headtail import Equalised
    >>> labels = Labels.from_counts([8, 1, 1])
    >>> hidden, table = torch.zeros(1, 2), torch.randn(3, 2)
    >>> draw = Tilted(labels, 4, Equalised(labels)).draw(torch.tensor([1]), input=hidden, weight=table)
    >>> draw.log_q_target.exp()  # all scores are equal, so q is ρ alone
    tensor([0.1000], dtype=torch.float64)
    """

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        margin: Margin,
        piece: Piece | None = None,
        *,
        exclude_target: bool = True,
    ) -> None:
        super().__init__(labels, num_negatives, exclude_target=exclude_target)
        check_margin(margin, self.num_labels)
        self.margin = margin
        self.piece = piece

    def log_mass(self, f: Tensor, label: Tensor, ids: Tensor) -> Tensor:
        """log ρ + f, or log ρ + log |φ(−f)|; of a separable margin the part that all labels share
        is left out.
        """
        margin = self.margin
        log_rho = (
            margin.log_negative(ids)
            if isinstance(margin, Separable)
            else margin.log_rho(label, ids)
        )
        f = f.double()
        return log_rho + (f if self.piece is None else self.piece.negative(-f).abs_().log_())

    def log_support(self, ids: Tensor) -> Tensor:
        """log ρ₂: a label of no weight is never drawn."""
        return (
            self.margin.log_negative(ids)
            if isinstance(self.margin, Separable)
            else super().log_support(ids)
        )

    @property
    def claims(self) -> Claims:
        """As above; labels of no weight are missed."""
        return replace(super().claims, may_miss=True)

    def extra_repr(self) -> str:
        """Size, options and target."""
        piece = "" if self.piece is None else f", piece={self.piece.name}"
        return f"{super().extra_repr()}, margin={type(self.margin).__name__}{piece}"

    def for_labels(self, labels: Labels) -> Tilted:
        """For the margin over the grown label set."""
        margin = self.margin.for_labels(labels)
        return Tilted(
            labels, self.num_negatives, margin, self.piece, exclude_target=self.exclude_target
        )
