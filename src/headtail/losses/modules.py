"""The losses as modules: a sampler and a weighting, or a margin, with their options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headtail.core.labels import Labels
from headtail.core.margins import Margin, Unit
from headtail.core.pieces import Piece, logistic
from headtail.core.targets import Pairs, Target
from headtail.core.weightings import FromMargin, WeighedDraw, Weighting
from headtail.errors import check_kind, check_num_labels, check_number
from headtail.losses.decoupled import (
    DecoupledSettings,
    decoupled_of_draw,
    exact_decoupled,
    two_tower_decoupled_loss,
)
from headtail.losses.inputs import Inputs, check_draw
from headtail.losses.options import Options, Settings, check_temperature
from headtail.losses.softmax import (
    SoftmaxSettings,
    exact_softmax,
    softmax_of_draw,
    two_tower_softmax_loss,
)
from headtail.samplers import Draw, Sampler, Scorer
from headtail.samplers.support import check_support


class Loss(nn.Module, ABC):
    """A loss over a label table, called as `loss(input, weight, target, bias=…)`.

    Options that change from batch to batch (`known_positives`, `sample_weight`) are passed in the
    call.

    Args:
        temperature: a number, or a parameter to learn it; above 0 (`Options` says when this is
            checked).
        post_hoc: τ; a `LabelHead` then ranks by f − τ log π.
        **options: keywords of the function behind it: `score`, `collisions`, `ignore_index`,
            `reduction`, and `label_smoothing` for softmax losses.
    """

    settings_type: ClassVar[type[Settings]]
    equation: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, *, temperature: float | Tensor = 1.0, post_hoc: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        self.settings = self.settings_type.of(
            {"temperature": temperature, **options}, also=("post_hoc",)
        )
        if not isinstance(temperature, Tensor) or temperature.device.type != "meta":
            check_temperature(temperature)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            self.register_buffer("temperature", temperature)
        else:
            self.temperature = temperature
        self.post_hoc = check_number("post_hoc", post_hoc)
        self.options = options

    def settings_with(self, options: Options) -> Settings:
        """The options of this loss, and over them those of one call."""
        if not options and not isinstance(self.temperature, Tensor):
            return self.settings
        own = {"temperature": self.temperature, **self.options}
        return self.settings_type.of({**own, **options})

    def again(self) -> dict[str, Any]:
        """The keywords that would make this loss again."""
        return {"temperature": self.temperature, "post_hoc": self.post_hoc, **self.options}

    def extra_repr(self) -> str:
        """Options that were set."""
        return ", ".join(
            f"{key}={getattr(value, 'name', value)}" for key, value in self.options.items()
        )

    @property
    def piece(self) -> Piece | None:
        """The pieces of a decoupled loss; None for the softmax."""
        return self.options.get("piece")

    @abstractmethod
    def for_labels(self, labels: Labels) -> Loss:
        """The same loss over a grown label set."""


class SampledLoss(Loss):
    """A loss over sampled negatives."""

    two_tower: ClassVar[Callable[..., Tensor]]

    def __init__(self, sampler: Sampler, weighting: Weighting, **options: Any) -> None:
        super().__init__(**options)
        check_kind("sampler", sampler, Sampler, "WithinBatch(labels)")
        check_kind("weighting", weighting, Weighting, "Tail(labels)")
        check_support(sampler, weighting)
        self.sampler = sampler
        self.weighting = weighting

    @property
    def follows_model(self) -> bool:
        """Whether what it optimises moves with the model's own scores: a q that does, and weights
        that do not undo it.
        """
        return self.sampler.claims.looks_at_model and not isinstance(self.weighting, FromMargin)

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
        **options: Unpack[Options],
    ) -> Tensor:
        """Draw (unless a draw is given), and take the loss."""
        settings = self.settings_with(options)
        inputs = Inputs.of(input, weight, bias, target, settings.ignore_index, sparse)
        num_labels = weight.shape[0]
        sampler = self.sampler
        check_num_labels("sampler", sampler.num_labels, "`weight`", num_labels)
        if draw is not None:
            check_draw(draw, self.weighting, inputs.pairs, num_labels)
        else:  # kernels, and plain PyTorch, refuse ids of a sampler that are no labels
            check_num_labels("weighting", self.weighting.num_labels, "`weight`", num_labels)
            if sampler.claims.looks_at_model:
                inputs.catch_up(...)
            # On a GPU the host would wait for the number of targets that count.
            fixed_size = weight.is_cuda
            draw = self.draw(
                inputs.hidden, weight, inputs.pairs, generator, bias, fixed_size=fixed_size
            )
        if inputs.decays:
            inputs.catch_up(inputs.rows_with(draw))
        return self.equation(inputs, draw, self.weighting, settings)

    def extra_repr(self) -> str:
        """Weighting and options."""
        return ", ".join(
            filter(None, [f"weighting={type(self.weighting).__name__}", super().extra_repr()])
        )

    def of_embeddings(
        self,
        input: Tensor,
        positive: Tensor,
        negatives: Tensor,
        target: Target,
        draw: Draw,
        **options: Unpack[Options],
    ) -> Tensor:
        """The loss where an item tower made the embeddings; arguments as in
        `two_tower_softmax_loss`.
        """
        own = {"temperature": self.temperature, **self.options}
        return self.two_tower(
            input, positive, negatives, target, draw, self.weighting, **{**own, **options}
        )

    def draw(
        self,
        input: Tensor,
        weight: Tensor,
        target: Target,
        generator: torch.Generator | None = None,
        bias: Tensor | None = None,
        **options: Any,
    ) -> Draw:
        """Negatives for one batch; of the options only `ignore_index` and `fixed_size` matter."""
        ignore_index = options.get("ignore_index", self.settings.ignore_index)
        fixed_size = options.get("fixed_size", False)
        model = None
        sampler = self.sampler
        if sampler.claims.looks_at_model:
            model = Scorer(input, weight, bias, self.temperature, self.settings.score)
        return sampler.draw(
            target,
            model=model,
            generator=generator,
            ignore_index=ignore_index,
            needs_target_q=self.weighting.needs_target_q,
            fixed_size=fixed_size,
        )

    def draw_ahead(self, target: Int[Tensor, " b"] | Pairs) -> Draw | None:
        """Negatives with the log-weights of this loss, to be passed as `draw`.

        None where drawing looks at the model. Another loss may take them too: it weighs them by its
        own weighting.
        """
        if self.sampler.claims.looks_at_model:
            return None
        pairs = Pairs.of(target, ignore_index=None)
        draw = self.sampler.draw(pairs, fixed_size=pairs.label.is_cuda)  # as a captured step needs
        return WeighedDraw.of(draw, self.weighting, pairs.label)

    def for_labels(self, labels: Labels) -> SampledLoss:
        """With sampler and weighting over the grown label set."""
        return type(self)(
            self.sampler.for_labels(labels), self.weighting.for_labels(labels), **self.again()
        )


class ExactLoss(Loss):
    """A loss over all labels."""

    def __init__(self, margin: Margin | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.margin = Unit() if margin is None else margin
        check_kind("margin", self.margin, Margin, "LogitAdjusted(labels)")

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        target: Target,
        *,
        bias: Tensor | None = None,
        **options: Unpack[Options],
    ) -> Tensor:
        """The exact loss of one batch."""
        settings = self.settings_with(options)
        inputs = Inputs.of(input, weight, bias, target, settings.ignore_index)
        inputs.catch_up(...)
        return self.equation(inputs, self.margin, settings)

    def for_labels(self, labels: Labels) -> ExactLoss:
        """With the margin over the grown label set."""
        return type(self)(self.margin.for_labels(labels), **self.again())


class SampledSoftmaxLoss(SampledLoss):
    """`sampled_softmax_loss` with its sampler and weighting, which together decide whether it leans
    to head or tail.

    >>> from headtail import Labels, Tail, WithinBatch
    >>> labels = Labels.from_counts([50, 30, 20])
    >>> loss = SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))
    >>> loss(torch.randn(4, 8), torch.randn(3, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    settings_type = SoftmaxSettings
    equation = staticmethod(softmax_of_draw)
    two_tower = staticmethod(two_tower_softmax_loss)


class SampledDecoupledLoss(SampledLoss):
    """`sampled_decoupled_loss` with its sampler and weighting, which together decide whether it
    leans to head or tail.

    >>> from headtail import Constant, Uniform
    >>> from headtail.functional import hinge
    >>> loss = SampledDecoupledLoss(Uniform(10, 4), Constant(), hinge)
    >>> loss(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    settings_type = DecoupledSettings
    equation = staticmethod(decoupled_of_draw)
    two_tower = staticmethod(two_tower_decoupled_loss)

    def __init__(
        self, sampler: Sampler, weighting: Weighting, piece: Piece = logistic, **options: Any
    ) -> None:
        check_kind("piece", piece, Piece, "contrastive()")
        super().__init__(sampler, weighting, piece=piece, **options)


class SoftmaxLoss(ExactLoss):
    """`softmax_loss` over all labels, with its margin.

    >>> SoftmaxLoss()(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    settings_type = SoftmaxSettings
    equation = staticmethod(exact_softmax)


class DecoupledLoss(ExactLoss):
    """`decoupled_loss` over all labels, with its margin.

    >>> DecoupledLoss()(torch.randn(4, 8), torch.randn(10, 8), torch.tensor([0, 0, 1, 2])).shape
    torch.Size([])
    """

    settings_type = DecoupledSettings
    equation = staticmethod(exact_decoupled)

    def __init__(
        self, margin: Margin | None = None, piece: Piece = logistic, **options: Any
    ) -> None:
        check_kind("piece", piece, Piece, "contrastive()")
        super().__init__(margin, piece=piece, **options)
