"""Weightings w: what each negative weighs, as two vectors of log-offsets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw, log_of
from headtail.core.labels import Labels, check_labels
from headtail.core.lookup import constant, written_out
from headtail.core.margins import LogitAdjusted, Margin, Separable, Unit
from headtail.errors import HeadtailError, check_kind


class Weighting(ABC):
    r"""Weights $w_{yy'}$ on the negatives. All that the paper names are separable: $\log w_{yy'} =
    a(y) + b(y')$.

    With a sampler q and m negatives, they imply the margin $\rho_{yy'} = m \cdot q_{y'} \cdot
    w_{yy'}$: the loss that training really minimises.
    """

    collisions: ClassVar[str] = "target"
    """Which draws do not count unless the loss says otherwise: see `Options`."""
    needs_target_q: ClassVar[bool] = True
    """Whether it looks at the q of the positives, which may cost as much as the draw."""
    unchanging: ClassVar[bool] = False
    """Whether all that it depends on stays the same from step to step, so that a CUDA graph may
    hold it. In a class of your own, set it to True if that is so.
    """

    @abstractmethod
    def offsets(
        self, draw: Draw, target: Int[Tensor, " b"]
    ) -> tuple[Float64[Tensor, " b"], Float64[Tensor, "*b m"]]:
        """(a `[b]`, b like `draw.ids`), with log w = a + b."""

    @property
    def num_labels(self) -> int | None:
        """How many labels it is for; None where it fits any number."""
        return None

    @property
    def replayable(self) -> bool:
        """Whether weighing is the same work on the device in every step, so that a CUDA graph may
        hold it.
        """
        return self.unchanging

    def numbers(
        self, draw: Draw, target: Int[Tensor, " b"]
    ) -> tuple[Tensor | float, Tensor | float]:
        """The offsets, each as one number where all are the same, so that a kernel need not read
        them from memory.
        """
        return self.offsets(draw, target)

    def for_labels(self, labels: Labels) -> Weighting:
        """The same weighting over a grown label set."""
        return self


@dataclass(frozen=True)
class Constant(Weighting):
    r"""$w_{yy'} = 1/m$. The sampler alone decides: ρ = q. Leans to the tail where q follows
    frequency.

    >>> draw = Draw(torch.tensor([1, 2]), torch.zeros(2).double(), torch.zeros(1).double(), m=2.0)
    >>> Constant().offsets(draw, torch.tensor([0]))
    (tensor([-0.6931], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """

    needs_target_q: ClassVar[bool] = False
    unchanging = True

    def offsets(self, draw: Draw, target: Tensor) -> tuple[Tensor, Tensor]:
        """a = −log m, b = 0."""
        check_marginal(self, draw.marginal)
        return constant(0.0, target) - draw.log_m, constant(0.0, draw.ids)

    def numbers(self, draw: Draw, target: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """a = −log m, b = 0."""
        check_marginal(self, draw.marginal)
        if isinstance(draw.m, Tensor):  # a look would make the host wait
            return self.offsets(draw, target)
        return 0.0 - log_of(draw.m), 0.0


@dataclass(frozen=True)
class InfoNCE(Weighting):
    r"""$w_{yy'} = 1$: each negative counts once, as in InfoNCE (van den Oord et al. 2018).

    ρ = m·q, and its loss grows like log m. Within the batch ρ = m·π_y': the equalised loss with all
    negatives weighing m times as much. Frequent labels are pushed down as often as they occur, rare
    ones hardly, so it leans to the tail.

    As in sentence-transformers' `MultipleNegativesRankingLoss`, every other slot of the batch is a
    negative, even if it holds the positive's own label (`collisions="slot"`, the default with
    `WithinBatch`); ρ is for y' ≠ y. About m·π_y such copies add to the 1 in the sum, which divides
    ρ by 1 + m·π_y and leans further to the tail. Draws of other samplers are masked where they hit
    the positive.

    >>> draw = Draw(torch.tensor([1, 2]), torch.zeros(2).double(), torch.zeros(1).double(), m=2.0)
    >>> InfoNCE().offsets(draw, torch.tensor([0]))
    (tensor([0.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """

    collisions: ClassVar[str] = "slot"
    needs_target_q: ClassVar[bool] = False
    unchanging = True

    def offsets(self, draw: Draw, target: Tensor) -> tuple[Tensor, Tensor]:
        """a = b = 0."""
        check_marginal(self, draw.marginal)
        return constant(0.0, target), constant(0.0, draw.ids)

    def numbers(self, draw: Draw, target: Tensor) -> tuple[float, float]:
        """a = b = 0."""
        check_marginal(self, draw.marginal)
        return 0.0, 0.0


@dataclass(frozen=True)
class Relative(Weighting):
    r"""$w_{yy'} = q_y / q_{y'}$: what "log q correction" of positive *and* negatives does in most
    libraries.

    ρ = m·q_y: frequent positives are trained harder, so it leans to the head wherever q follows
    frequency. Its loss also grows with m, like log m.
    """

    unchanging = True

    def offsets(self, draw: Draw, target: Tensor) -> tuple[Tensor, Tensor]:
        """a = log q(y), b = −log q(y')."""
        check_marginal(self, draw.marginal)
        if draw.log_q_target is None:
            raise HeadtailError(
                "`Relative` needs the log q of the positives: pass `log_q_target` to `Given`, or "
                "give `log_q` as a function."
            )
        return draw.log_q_target.clone(), 0.0 - draw.log_q


@dataclass(frozen=True)
class FromMargin(Weighting):
    r"""The weights that make any sampler optimise the margin ρ: $w_{yy'} = \rho_{yy'} / (m \cdot
    q_{y'})$.

    Args:
        margin: the loss you want.

    >>> from headtail import Equalised, Uniform
    >>> labels, target = Labels.from_counts([3, 1]), torch.tensor([0])
    >>> draw = Uniform(labels, 5).draw(target)
    >>> a, b = FromMargin(Equalised(labels)).offsets(draw, target)
    """

    needs_target_q: ClassVar[bool] = False
    margin: Margin

    def __post_init__(self) -> None:
        check_kind("margin", self.margin, Margin, "LogitAdjusted(labels)")

    def offsets(self, draw: Draw, target: Tensor) -> tuple[Tensor, Tensor]:
        """a = log ρ₁ + log_keep, b = log ρ₂ − log m − log q; a margin that does not split goes into
        b whole.
        """
        if isinstance(self.margin, Separable):
            a = self.margin.log_positive(target)
            b = self.margin.log_negative(draw.ids)
        else:
            a = constant(0.0, target)
            b = self.margin.log_rho(target, draw.ids)
        if isinstance(draw.log_keep, Tensor):
            a = a + draw.log_keep
        return a, b - draw.log_m - draw.log_q

    def numbers(self, draw: Draw, target: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """The same; where ρ = 1 nothing is looked up, and where q is one number nothing is
        subtracted on the device.
        """
        margin = self.margin
        if not isinstance(margin, Separable):
            return self.offsets(draw, target)
        a = 0.0 if margin.one_for_positives else margin.log_positive(target)
        b = 0.0 if margin.one_for_negatives else margin.log_negative(draw.ids)
        if isinstance(draw.log_keep, Tensor):
            a = a + draw.log_keep
        log_q = draw.log_q if draw.same_log_q is None else draw.same_log_q
        log_m = draw.log_m if isinstance(draw.m, Tensor) else log_of(draw.m)
        return a, b - log_m - log_q

    @property
    def num_labels(self) -> int | None:
        """As many as its margin is for."""
        return self.margin.num_labels

    @property
    def replayable(self) -> bool:
        """If its margin is."""
        return self.margin.replayable

    def for_labels(self, labels: Labels) -> FromMargin:
        """With the margin over the grown label set."""
        return FromMargin(self.margin.for_labels(labels))


class Importance(FromMargin):
    r"""$w_{yy'} = 1/(m \cdot q_{y'})$: the unbiased softmax, for any sampler. Leans neither to head
    nor tail.

    >>> Importance().margin
    Unit()
    """

    def __init__(self) -> None:
        super().__init__(Unit())

    def for_labels(self, labels: Labels) -> Importance:
        """Itself."""
        return self


class Tail(FromMargin):
    r"""$w_{yy'} = \frac{1}{m \cdot q_{y'}} \big(\pi_{y'} / \pi_y\big)^{\tau}$: logit adjustment for
    any sampler. Leans to the tail.

    Args:
        labels: gives π; every label needs π > 0.
        strength: τ.

    >>> Tail(Labels.from_counts([3, 1])).margin.strength
    1.0
    """

    margin: LogitAdjusted

    def __init__(self, labels: Labels, strength: float = 1.0) -> None:
        check_labels(labels)
        labels.require_positive_prior("Tail")
        super().__init__(LogitAdjusted(labels, strength))

    def for_labels(self, labels: Labels) -> Tail:
        """With the grown label set's prior."""
        return Tail(labels, self.margin.strength)


@dataclass(frozen=True, eq=False, kw_only=True)
class WeighedDraw(Draw):
    """A draw with its log-weights looked up ahead, of one weighting for one batch of targets.

    They are computed here and nowhere else: a changed copy (`dataclasses.replace`) is weighed
    again.

    Args:
        weighting: gives the log-weights.
        target: `[b]` the positives.
    """

    weighting: Weighting = field(repr=False)
    target: Int[Tensor, " b"] = field(repr=False)
    log_w: tuple[Tensor | float, Tensor | float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "log_w", self.weighting.numbers(self, self.target))

    @classmethod
    def of(cls, draw: Draw, weighting: Weighting, target: Int[Tensor, " b"]) -> WeighedDraw:
        """Weigh a draw for these targets."""
        return cls(**draw.arguments(), weighting=weighting, target=target)


def kernel_log_weights(
    weighting: Weighting, draw: Draw, target: Int[Tensor, " b"]
) -> tuple[Tensor | float, Tensor | float]:
    """(a, b) of a weighting, each as one number where all are the same; those looked up ahead where
    they are these.
    """
    a, b = _looked_up_ahead(weighting, draw, target) or weighting.numbers(draw, target)
    return a, _without_void(draw, b)


def log_weights(
    weighting: Weighting, draw: Draw, target: Int[Tensor, " b"]
) -> tuple[Tensor, Tensor]:
    """(a, b) of a weighting; those looked up ahead where they are these."""
    ahead = _looked_up_ahead(weighting, draw, target)
    if ahead is None:
        a, b = weighting.offsets(draw, target)
    else:
        a = written_out(ahead[0], target)
        b = written_out(ahead[1], draw.ids)
    return a, _without_void(draw, b)


B = TypeVar("B", bound=Tensor | float)


def _without_void(draw: Draw, b: B) -> B | Tensor:
    """Places that hold no negative weigh 0."""
    if draw.void is None:
        return b
    return written_out(b, draw.ids).masked_fill(draw.void, -math.inf)


def _looked_up_ahead(
    weighting: Weighting, draw: Draw, target: Tensor
) -> tuple[Tensor | float, Tensor | float] | None:
    """The log-weights that a draw carries, if they were computed by this weighting for these
    targets.
    """
    if isinstance(draw, WeighedDraw) and draw.weighting is weighting and draw.target is target:
        return draw.log_w
    return None


def check_marginal(weighting: Weighting, marginal: bool) -> None:
    """Refuse weights that need the q of each label where it is not known."""
    if not marginal:
        raise HeadtailError(
            f"`{type(weighting).__name__}` needs the q of the labels drawn, which is unknown where "
            "they are drawn from a pool. Write weights that come from a margin: `Importance()` or "
            "`Tail(labels)`."
        )
