"""The losses as modules: a sampler and a weighting, or a margin, held together with their options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headtail.errors import HeadtailError
from headtail.labels import Labels
from headtail.losses.decoupled import Piece, decoupled_loss, logistic, sampled_decoupled_loss
from headtail.losses.softmax import sampled_softmax_loss, softmax_loss
from headtail.losses.terms import Settings
from headtail.margins import Margin, Unit
from headtail.samplers import Draw, Sampler
from headtail.targets import Target
from headtail.weightings import Weighting, check_support


class Loss(nn.Module, ABC):
    """A loss over a label table, called as `loss(input, weight, target, bias=…)`.

    Options that change from batch to batch (`known_positives`, `sample_weight`) are passed in the call.

    Args:
        **options: keywords of the function behind it: `temperature`, `score`, `collisions`, `ignore_index`, `reduction`, and
            `label_smoothing` for softmax losses.
    """

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.settings = Settings(**{k: v for k, v in options.items() if k not in ("label_smoothing", "piece")})
        self.options = options

    @property
    def piece(self) -> Piece | None:
        """The pieces of a decoupled loss; None for the softmax."""
        return self.options.get("piece")

    @abstractmethod
    def for_labels(self, labels: Labels) -> Loss:
        """The same loss over a grown label set."""


class SampledLoss(Loss):
    """A loss over sampled negatives."""

    def __init__(self, sampler: Sampler, weighting: Weighting, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(sampler, Sampler) or not isinstance(weighting, Weighting):
            raise HeadtailError(
                f"A sampled loss needs a sampler and a weighting, but got {type(sampler).__name__} and {type(weighting).__name__}. "
                "Write for example `SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))`."
            )
        check_support(sampler, weighting)
        self.sampler, self.weighting = sampler, weighting

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        target: Target,
        *,
        bias: Tensor | None = None,
        draw: Draw | None = None,
        sparse: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """Draw (unless a draw is given), and take the loss."""
        if draw is None:
            draw = self.draw(input, weight, target, generator)
        return type(self).function(
            input, weight, target, draw, self.weighting, bias=bias, sparse=sparse, **{**self.options, **options}
        )

    def draw(self, input: Tensor, weight: Tensor, target: Target, generator: torch.Generator | None = None) -> Draw:
        """Negatives for one batch."""
        ignore_index = self.settings.ignore_index
        return self.sampler.draw(target, input=input, weight=weight, generator=generator, ignore_index=ignore_index)

    def for_labels(self, labels: Labels) -> SampledLoss:
        """With sampler and weighting over the grown label set."""
        return type(self)(self.sampler.for_labels(labels), self.weighting.for_labels(labels), **self.options)


class ExactLoss(Loss):
    """A loss over all labels."""

    def __init__(self, margin: Margin | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.margin = margin or Unit()

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        target: Target,
        *,
        bias: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The exact loss of one batch."""
        return type(self).function(input, weight, target, self.margin, bias=bias, **{**self.options, **options})

    def for_labels(self, labels: Labels) -> ExactLoss:
        """With the margin over the grown label set."""
        return type(self)(self.margin.for_labels(labels), **self.options)


class SampledSoftmaxLoss(SampledLoss):
    """`sampled_softmax_loss` with its sampler and weighting, which together decide whether it leans to head or tail.

    >>> from headtail import Labels, Tail, WithinBatch
    >>> labels = Labels.from_counts([50, 30, 20])
    >>> loss = SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))
    >>> loss(torch.randn(4, 8), torch.randn(3, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    function = sampled_softmax_loss


class SampledDecoupledLoss(SampledLoss):
    """`sampled_decoupled_loss` with its sampler and weighting, which together decide whether it leans to head or tail.

    >>> from headtail import Constant, Uniform, hinge
    >>> loss = SampledDecoupledLoss(Uniform(10, 4), Constant(), hinge)
    >>> loss(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    function = sampled_decoupled_loss

    def __init__(self, sampler: Sampler, weighting: Weighting, piece: Piece = logistic, **options: Any) -> None:
        super().__init__(sampler, weighting, piece=piece, **options)


class SoftmaxLoss(ExactLoss):
    """`softmax_loss` over all labels, with its margin.

    >>> SoftmaxLoss()(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    function = softmax_loss


class DecoupledLoss(ExactLoss):
    """`decoupled_loss` over all labels, with its margin.

    >>> DecoupledLoss()(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    function = decoupled_loss

    def __init__(self, margin: Margin | None = None, piece: Piece = logistic, **options: Any) -> None:
        super().__init__(margin, piece=piece, **options)
