"""Options that all losses share: the keywords, checked, and which negatives do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.score_margins import ScoreMargin
from headtail.core.targets import IGNORE_INDEX, Pairs, Target
from headtail.core.weightings import Weighting
from headtail.errors import (
    HeadtailError,
    check_choice,
    check_kind,
    check_number,
    check_same_device,
    nearest,
)
from headtail.rows.rounding import widened


class Options(TypedDict, total=False):
    """Keywords that all losses share.

    Attributes:
        temperature: logits are divided by it *before* the weights correct them; a number or a
            learnable scalar, above 0. A learnable one is checked when a module is made, and in
            every call on a CPU. A call on a GPU does not check it, because the host would wait:
            below 0 the order of the scores is reversed, and at 0 the loss is not finite. Keep it
            above 0 with `temperature.clamp_(min=0.01)` under `torch.no_grad()` after each step.
        score: `"dot"`, or `"cosine"` to normalise inputs and label embeddings.
        known_positives: labels of each example, `[b, k]` padded or ragged, that must not count as
            negatives.
        collisions: which draws are masked: `"target"` (those that hit the positive; the default),
            `"known"` (all known positives; the default once `known_positives` is given), `"slot"`
            (of within-batch negatives only the example itself; the default of `InfoNCE`), or
            `"none"`.
        sample_weight: `[b]` a weight for each example; `"mean"` divides by their sum.
        ignore_index: targets (or padding) with this id count nowhere; −100, as in torch. None
            promises that there are none, which saves a CUDA host some waiting.
        reduction: `"mean"` over pairs, `"sum"`, or `"none"` for one value per pair.
        score_margin: a margin on the cosine of the positive itself, such as `ArcFace(0.5)`; softmax
            losses only.

    Hidden states `[B, T, d]` count as B·T examples; then `target` and `sample_weight` have the
    shape `[B, T]`, and `known_positives` `[B, T, k]`.
    """

    temperature: float | Tensor
    score: Literal["dot", "cosine"]
    known_positives: Target | None
    collisions: Literal["target", "known", "none", "slot"] | None
    sample_weight: Tensor | None
    ignore_index: int | None
    reduction: Literal["mean", "sum", "none"]
    score_margin: ScoreMargin | None


OPTION_NAMES = tuple(Options.__annotations__)


# Not `Self`: the checker of shapes looks at each method by itself.
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, eq=False)
class Settings:
    """`Options` with their defaults, checked."""

    own: ClassVar[tuple[str, ...]] = ()
    """Options that only some losses have."""
    temperature: float | Tensor = 1.0
    score: str = "dot"
    known_positives: Target | None = None
    collisions: str | None = None
    sample_weight: Tensor | None = None
    ignore_index: int | None = IGNORE_INDEX
    reduction: str = "mean"
    score_margin: ScoreMargin | None = None

    @classmethod
    def of(cls: type[S], options: Mapping[str, Any], also: tuple[str, ...] = ()) -> S:
        """From keywords. An unknown one is refused with the nearest name, those in `also` too."""
        names = (*OPTION_NAMES, *cls.own)
        for name in options:
            if name not in names:
                near = nearest(name, (*names, *also))
                raise HeadtailError(f"`{name}` is not an option of this loss.{near} See `Options`.")
        return cls(**options)

    def __post_init__(self) -> None:
        check_choice("score", self.score, ("dot", "cosine"))
        check_choice("reduction", self.reduction, ("mean", "sum", "none"))
        if self.collisions is not None:
            check_choice("collisions", self.collisions, ("target", "known", "none", "slot"))
        if self.known_positives is not None and self.collisions in ("target", "none", "slot"):
            raise HeadtailError(
                '`known_positives` is masked only with `collisions="known"`, but got '
                f"{self.collisions!r}. Drop one."
            )
        seen = isinstance(self.temperature, Tensor) and self.temperature.device.type == "cpu"
        if seen or not isinstance(self.temperature, Tensor):
            check_temperature(self.temperature)
        if self.sample_weight is not None:
            check_kind("sample_weight", self.sample_weight, Tensor, "torch.ones(b)")
        if self.score_margin is not None:
            check_kind("score_margin", self.score_margin, ScoreMargin, "ArcFace(0.5)")
            if self.score != "cosine":
                raise HeadtailError(
                    '`score_margin` moves the cosine of the positive: write `score="cosine"`, and '
                    "a small `temperature`, for example 1/64."
                )

    def compared(
        self, pairs: Pairs, draw: Draw, weighting: Weighting
    ) -> tuple[Int[Tensor, " p"], Int[Tensor, "*p m"]] | None:
        """What must differ for a draw to count: labels and ids, or places in the batch ("slot").

        None where all draws count.
        """
        mode = self.collisions
        if mode is None:
            as_weighted = self.known_positives is None and draw.slots is not None
            mode = weighting.collisions if as_weighted else "target"
        if mode == "none":
            return None
        if mode != "slot":
            return pairs.label, draw.ids
        if draw.slots is None or draw.slots.shape != draw.ids.shape:
            raise HeadtailError(
                '`collisions="slot"` needs draws that know their places in the batch, as those of '
                '`WithinBatch` do. Write `collisions="target"` for others.'
            )
        places = torch.arange(len(pairs.label), device=pairs.label.device)
        return places + draw.start if draw.start else places, draw.slots

    def masks(self, pairs: Pairs, draw: Draw, weighting: Weighting) -> Bool[Tensor, "p m"]:
        """True for draws that do not count; all draws of an ignored pair."""
        ids = draw.ids
        mask = pairs.ignored[:, None]
        if (compared := self.compared(pairs, draw, weighting)) is not None:
            own, drawn = compared
            mask = (own[:, None] == drawn) | mask
        if draw.void is not None:
            mask = draw.void | mask
        if draw.groups is not None:
            own_group = draw.groups[draw.start : draw.start + len(pairs.label)]
            mask = (own_group[:, None] == draw.groups[draw.slots]) | mask
        known = self.known_positives
        if known is None and self.collisions != "known":
            return mask.expand(len(pairs.label), ids.shape[-1])
        if known is None and not pairs.multi_label:
            raise HeadtailError(
                '`collisions="known"` needs `known_positives`, or targets with several labels per '
                "example."
            )
        positives = pairs
        if known is not None:
            positives = Pairs.of(known, ignore_index=self.ignore_index, name="known_positives")
        if positives.num_examples != pairs.num_examples:
            raise HeadtailError(
                f"`known_positives` has {positives.num_examples} examples but `target` has "
                f"{pairs.num_examples}. Match them."
            )
        # One integer for each (example, label), so that membership is one look-up; label ids stay
        # below 2^40.
        taken = torch.where(positives.ignored, -1, (positives.example_of() << 40) | positives.label)
        return mask | torch.isin((pairs.example_of()[:, None] << 40) | ids, taken)

    @property
    def looks_for_known(self) -> bool:
        """Whether more than the positive itself may collide."""
        return self.known_positives is not None or self.collisions == "known"

    @property
    def weighs_in_backward(self) -> bool:
        """Whether only the backward pass knows how much each pair counts."""
        weighs = self.sample_weight is not None and self.sample_weight.requires_grad
        return weighs or self.reduction == "none"

    def scale(self, pairs: Pairs) -> Float[Tensor, " p"] | float:
        """Each pair's factor in the reduced loss, one number where all have the same; 0 for ignored
        ones.
        """
        if self.sample_weight is None and pairs.all_count:
            n = 1 if self.reduction == "sum" else max(1, pairs.label.shape[0])
            return 1 / n
        if self.sample_weight is None and pairs.share is not None and self.reduction == "mean":
            return pairs.share
        weight = self.weights(pairs)
        if self.reduction == "sum":
            return weight
        total = weight.sum()
        return weight / torch.where(total == 0, torch.ones_like(total), total)

    def weights(self, pairs: Pairs) -> Float[Tensor, " p"]:
        """`sample_weight` for each pair, 1 without it; 0 for ignored ones."""
        if self.sample_weight is None:
            ones = torch.ones(len(pairs.label), device=pairs.label.device)
            return ones if pairs.all_count else ones.masked_fill_(pairs.ignored, 0.0)
        given = self.sample_weight
        if given.dim() == 2 and given.shape == pairs.positions:
            given = given.flatten()
        if given.shape != (pairs.num_examples,):
            raise HeadtailError(
                f"`sample_weight` must have one weight per example, shape [{pairs.num_examples}], "
                f"but got {list(self.sample_weight.shape)}."
            )
        check_same_device("sample_weight", self.sample_weight, "target", pairs.label)
        weight = widened(pairs.rows(given)).masked_fill(pairs.ignored, 0.0)
        # On a GPU the host would wait for the answer.
        looks = not torch.compiler.is_compiling() and weight.device.type == "cpu"
        if looks and not bool((weight >= 0).all()):
            raise HeadtailError(
                "`sample_weight` must be numbers of at least 0, but some are negative or NaN. "
                "Correct them first."
            )
        return weight

    def reduce(self, loss: Float[Tensor, " p"], pairs: Pairs) -> Tensor:
        """Weighted mean over pairs, sum, or nothing; ignored pairs are selected away, never
        multiplied by 0.
        """
        loss = loss.masked_fill(pairs.ignored, 0.0)
        weight = self.weights(pairs).to(loss.dtype)
        if self.sample_weight is not None:
            loss = loss * weight
        if self.reduction == "none":
            if pairs.positions is None or pairs.multi_label:
                return loss
            return loss.reshape(*pairs.positions)
        if self.reduction == "sum":
            return loss.sum()
        total = weight.sum()
        # A batch in which nothing counts has loss 0, not 0/0.
        return loss.sum() / torch.where(total == 0, torch.ones_like(total), total)


def check_temperature(temperature: float | Tensor) -> None:
    """Refuse a temperature that is not above 0; a tensor on a GPU makes the host wait."""
    if not isinstance(temperature, Tensor):
        if check_number("temperature", temperature) <= 0:
            raise HeadtailError(f"`temperature` must be above 0, but got {temperature!r}.")
    elif not torch.compiler.is_compiling() and not bool((temperature > 0).all()):
        raise HeadtailError(
            f"`temperature` must be above 0, but got {temperature.tolist()}. Write "
            "`with torch.no_grad(): temperature.clamp_(min=0.01)` after each step that learns it."
        )
