"""Negatives of minimum variance for a given loss."""

from __future__ import annotations

from typing import final

from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Margin, Separable, check_margin
from headtail.core.pieces import Piece
from headtail.samplers.model.by_score import OnePassSampler
from headtail.samplers.sampler import Claims


@final
class Tilted(OnePassSampler):
    r"""The q of minimum variance for a margin ρ: $q^*_{y'} \propto \rho_{yy'}\, e^{f_{y'}}$ for the
    softmax, $\propto \rho_{yy'}\, |\varphi(-f_{y'})|$ for decoupled losses.

    With weights from the same margin (`FromMargin(margin)`) and the positive excluded, the sampled
    loss has no variance if φ does not change sign: each negative counts the same. It leans as the
    margin does. A draw costs one pass over the label table.

    A label with ρ = 0 or φ = 0 is never drawn; if that is so for all labels, the negative term is 0
    and labels are drawn uniformly.

    Args:
        labels: the labels, or just their number.
        num_negatives: m.
        margin: ρ, that of the weights: `Tail(labels).margin`, or the margin of `FromMargin`.
        piece: the `Piece` of a decoupled loss; None for the softmax.
        exclude_target: draw from the other labels only; else a draw that hits the positive is
            masked in the loss.

    >>> import torch
    >>> from headtail import Equalised
    >>> labels = Labels.from_counts([8, 1, 1])
    >>> hidden, table = torch.zeros(1, 2), torch.randn(3, 2)
    >>> sampler = Tilted(labels, 4, Equalised(labels))
    >>> draw = sampler.draw(torch.tensor([1]), input=hidden, weight=table)
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
        if isinstance(self.margin, Separable):
            log_rho = self.margin.log_negative(ids)
        else:
            log_rho = self.margin.log_rho(label, ids)
        f = f.double()
        return log_rho + (f if self.piece is None else self.piece.negative(-f).abs_().log_())

    def log_support(self, ids: Tensor) -> Tensor:
        """log ρ₂: a label with ρ = 0 is never drawn."""
        if isinstance(self.margin, Separable):
            return self.margin.log_negative(ids)
        return super().log_support(ids)

    @property
    def claims(self) -> Claims:
        """Labels with ρ = 0 are missed."""
        excluded = self.exclude_target
        return Claims(looks_at_model=True, shared=False, may_miss=True, excludes_target=excluded)

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
