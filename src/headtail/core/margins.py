"""Margins ρ: the losses people want, as pairwise margins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.labels import Labels, check_labels
from headtail.core.lookup import Table, constant
from headtail.errors import HeadtailError, check_kind, check_num_labels, check_number


class Margin(ABC):
    r"""A pairwise margin $\rho_{yy'} \ge 0$: how much the negative $y'$ weighs against the positive
    $y$ in

    $$\log\Big[1 + \sum_{y' \ne y} \rho_{yy'}\, e^{f_{y'} - f_y}\Big].$$
    """

    unchanging: ClassVar[bool] = False
    """Whether all that it depends on stays the same from step to step, so that a CUDA graph may
    hold it. In a class of your own, set it to True if that is so.
    """

    @abstractmethod
    def log_rho(
        self, target: Int[Tensor, " b"], ids: Int[Tensor, "*b m"]
    ) -> Float64[Tensor, "b m"]:
        """`[b, m]` log ρ(y, y') for positives `target` and negatives `ids` (`[m]` or `[b, m]`)."""

    @property
    def neutral(self) -> bool:
        """Whether ρ(y, y) = 1 for every label: then the positive may stay in the sum, and the loss
        is a plain cross-entropy.
        """
        return False

    @property
    def num_labels(self) -> int | None:
        """How many labels it is for; None where it fits any number."""
        return None

    @property
    def replayable(self) -> bool:
        """Whether looking it up is the same work on the device in every step, so that a CUDA graph
        may hold it.
        """
        return self.unchanging

    def for_labels(self, labels: Labels) -> Margin:
        """The same margin over a grown label set."""
        return self


class Separable(Margin):
    r"""A margin that splits in two: $\log \rho_{yy'} = \log \rho_1(y) + \log \rho_2(y')$. Every
    named loss here does.
    """

    one_for_positives: ClassVar[bool] = False
    """Whether ρ₁ = 1 for every label, so that it need not be looked up."""
    one_for_negatives: ClassVar[bool] = False
    """Whether ρ₂ = 1 for every label."""

    @abstractmethod
    def log_positive(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log ρ₁ of positives."""

    @abstractmethod
    def log_negative(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log ρ₂ of negatives."""

    def log_rho(
        self, target: Int[Tensor, " b"], ids: Int[Tensor, "*b m"]
    ) -> Float64[Tensor, "b m"]:
        """Sum of the two parts."""
        return self.log_positive(target)[:, None] + self.log_negative(ids)


def check_margin(
    margin: Any, num_labels: int, kind: type[Margin] = Margin, other: str = "the sampler"
) -> None:
    """Refuse what is not a margin of this kind, or is over another number of labels."""
    if isinstance(getattr(margin, "margin", None), Margin):
        name = type(margin).__name__
        raise HeadtailError(
            f"`margin` must be a {kind.__name__}, but {name} is a weighting. Write "
            f"`{name}(…).margin`."
        )
    check_kind("margin", margin, kind, "LogitAdjusted(labels)")
    check_num_labels("margin", margin.num_labels, other, num_labels)


@dataclass(frozen=True)
class Unit(Separable):
    r"""$\rho_{yy'} = 1$: the plain, unbiased softmax cross-entropy. Leans neither to head nor tail.

    >>> Unit().log_rho(torch.tensor([0]), torch.tensor([1, 2]))
    tensor([[0., 0.]], dtype=torch.float64)
    """

    one_for_positives = True
    one_for_negatives = True
    unchanging = True

    @property
    def neutral(self) -> bool:
        """Yes."""
        return True

    def log_positive(self, ids: Tensor) -> Tensor:
        """0."""
        return constant(0.0, ids)

    def log_negative(self, ids: Tensor) -> Tensor:
        """0."""
        return constant(0.0, ids)


@dataclass(frozen=True)
class LogitAdjusted(Separable):
    r"""$\rho_{yy'} = (\pi_{y'} / \pi_y)^{\tau}$: the logit-adjusted loss (Menon et al. 2020). Leans
    to the tail.

    The same as adding $\tau \log \pi$ to the logits during training.

    Args:
        labels: gives π; every label needs π > 0.
        strength: τ; 1 is right for the balanced error.

    >>> margin = LogitAdjusted(Labels.from_counts([3, 1]))
    >>> margin.log_rho(torch.tensor([1]), torch.tensor([0])).exp()
    tensor([[3.0000]], dtype=torch.float64)
    """

    labels: Labels
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_labels(self.labels)
        check_number("strength", self.strength)
        self.labels.require_positive_prior("LogitAdjusted")

    @property
    def neutral(self) -> bool:
        """Yes: π_y/π_y = 1."""
        return True

    @property
    def num_labels(self) -> int:
        """L."""
        return self.labels.num_labels

    @property
    def replayable(self) -> bool:
        """If the labels are fixed."""
        return self.labels.unchanging

    def log_positive(self, ids: Tensor) -> Tensor:
        """−τ log π."""
        return -self.strength * self.labels.log_prior(ids)

    def log_negative(self, ids: Tensor) -> Tensor:
        """τ log π."""
        return self.strength * self.labels.log_prior(ids)

    def for_labels(self, labels: Labels) -> LogitAdjusted:
        """With the grown label set's prior."""
        return LogitAdjusted(labels, self.strength)


@dataclass(frozen=True)
class Equalised(Separable):
    r"""$\rho_{yy'} = F(\pi_{y'})$, F increasing: the equalised loss (Tan et al. 2020). Leans to the
    tail.

    Rare labels are pushed down less when they are negatives.

    Args:
        labels: gives π.
        transform: F, from a float64 tensor of priors to values ≥ 0; π itself by default.

    >>> Equalised(Labels.from_counts([3, 1])).log_negative(torch.tensor([1])).exp()
    tensor([0.2500], dtype=torch.float64)
    """

    one_for_positives = True
    labels: Labels
    transform: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_labels(self.labels)

    @property
    def num_labels(self) -> int:
        """L."""
        return self.labels.num_labels

    @property
    def replayable(self) -> bool:
        """If the labels are fixed, and F is not your own."""
        own = self.transform is not None and not isinstance(self.transform, Power)
        return self.labels.unchanging and not own

    def log_positive(self, ids: Tensor) -> Tensor:
        """0."""
        return constant(0.0, ids)

    def log_negative(self, ids: Tensor) -> Tensor:
        """log F(π)."""
        log_prior = self.labels.log_prior(ids)
        if self.transform is None:
            return log_prior
        value = self.transform(log_prior.exp())
        # On a GPU the host would wait for the answer.
        looks = not torch.compiler.is_compiling() and value.device.type == "cpu"
        if looks and not bool((value >= 0).all()):
            raise HeadtailError(
                "`transform` must map priors in [0, 1] to numbers of at least 0, but gave a "
                "negative one or NaN."
            )
        return value.log()

    def for_labels(self, labels: Labels) -> Equalised:
        """With the grown label set's prior."""
        return Equalised(labels, self.transform)


@dataclass(frozen=True)
class Power:
    r"""$F(\pi) = \pi^k$, for `Equalised`.

    >>> Power(2)(torch.tensor([0.5]))
    tensor([0.2500])
    """

    exponent: float

    def __call__(self, prior: Tensor) -> Tensor:
        """π^k."""
        return prior**self.exponent


@dataclass(frozen=True)
class Adaptive(Separable):
    r"""$\log \rho_{yy'} = C\,\pi_y^{-1/4}$: the adaptive margin (LDAM, Cao et al. 2019). Leans to
    the tail.

    Rare positives must win by more. C is set so that the rarest label's margin is `largest`.

    Args:
        labels: gives π; every label needs π > 0.
        largest: log ρ of the rarest label; multiply 0.5 by the scale (1 / temperature) of a cosine
            head.

    >>> Adaptive(Labels.from_counts([16, 1])).log_positive(torch.tensor([0, 1]))
    tensor([0.2500, 0.5000], dtype=torch.float64)
    """

    one_for_negatives = True
    labels: Labels
    largest: float = 0.5

    def __post_init__(self) -> None:
        check_labels(self.labels)
        check_number("largest", self.largest, low=0)
        self.labels.require_positive_prior("Adaptive")

    @property
    def num_labels(self) -> int:
        """L."""
        return self.labels.num_labels

    @property
    def replayable(self) -> bool:
        """If the labels are fixed."""
        return self.labels.unchanging

    def log_positive(self, ids: Tensor) -> Tensor:
        """C·π^(−1/4), as largest·(π / min π)^(−1/4)."""
        relative = self.labels.log_prior(ids).exp() / self.labels.rarest
        return self.largest * relative**-0.25

    def log_negative(self, ids: Tensor) -> Tensor:
        """0."""
        return constant(0.0, ids)

    def for_labels(self, labels: Labels) -> Adaptive:
        """With the grown label set's prior."""
        return Adaptive(labels, self.largest)


@dataclass(frozen=True, eq=False)
class CustomSeparable(Separable):
    r"""Your own separable margin, from the two vectors $\log \rho_1$ and $\log \rho_2$.

    Args:
        positive: `[L]` log ρ₁(y); −inf is ρ = 0.
        negative: `[L]` log ρ₂(y').

    >>> margin = CustomSeparable(positive=[0.0, 1.0], negative=[0.0, 0.0])
    >>> margin.log_rho(torch.tensor([1]), torch.tensor([0]))
    tensor([[1.]], dtype=torch.float64)
    """

    unchanging = True
    positive: Any
    negative: Any
    _tables: tuple[Table, Table] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            vector = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            if vector.dim() != 1 or bool((vector.isnan() | (vector == torch.inf)).any()):
                raise HeadtailError(
                    f"`{name}` must be one log-margin per label, of shape [L] and without NaN or "
                    "+inf."
                )
            object.__setattr__(self, name, vector)
        if len(self.positive) != len(self.negative):
            raise HeadtailError(
                f"`positive` has {len(self.positive)} labels but `negative` has "
                f"{len(self.negative)}. Give both [L]."
            )
        object.__setattr__(self, "_tables", (Table(self.positive), Table(self.negative)))

    def log_positive(self, ids: Tensor) -> Tensor:
        """As given."""
        return self._tables[0][ids]

    def log_negative(self, ids: Tensor) -> Tensor:
        """As given."""
        return self._tables[1][ids]

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.positive)

    def for_labels(self, labels: Labels) -> Margin:
        """Refused: the new labels' margins are unknown."""
        raise HeadtailError(
            f"`CustomSeparable` has margins for {len(self.positive)} labels, and "
            f"{labels.num_labels} are wanted. "
            "Pass a new loss: `head.grow(labels, loss=…)`."
        )


@dataclass(frozen=True)
class Pairwise(Margin):
    r"""Your own margin that does not split: any function of the pair. Reference path only; costs
    `[b, m]` numbers per step.

    Args:
        function: from positives `[b, 1]` and negatives `[1, m]` or `[b, m]` (ids) to log ρ,
            broadcast to `[b, m]`.

    >>> far = Pairwise(lambda y, other: -((y - other).abs()).double())
    >>> far.log_rho(torch.tensor([0]), torch.tensor([1, 5]))
    tensor([[-1., -5.]], dtype=torch.float64)
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def log_rho(
        self, target: Int[Tensor, " b"], ids: Int[Tensor, "*b m"]
    ) -> Float64[Tensor, "b m"]:
        """The function of each pair."""
        ids = ids[None, :] if ids.dim() == 1 else ids
        value = torch.as_tensor(
            self.function(target[:, None], ids), dtype=torch.float64, device=ids.device
        )
        return value.expand(len(target), ids.shape[-1])
