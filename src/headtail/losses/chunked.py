"""The exact softmax over many labels in one autograd node: chunks of examples, tiles of labels, and
all gradients computed with the loss.

Scores are held for one chunk at a time, and each is computed once: three matrix products in all, as
in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.core.margins import Separable, check_margin
from headtail.core.score_margins import Scaled
from headtail.kernels.dispatch import exact_kernels
from headtail.losses.fused import handed_out, margin_of_scores, slope_in_margin
from headtail.losses.inputs import Inputs
from headtail.losses.options import Settings
from headtail.losses.terms import exact_factors
from headtail.losses.tiles import LN_2, Chunk, Filled, Targets, Tiles, add_product
from headtail.losses.whole_scores import (
    Passes,
    aligned_stride,
    log_rho_of_negatives,
    loss_of_passes,
)
from headtail.rows.rounding import widened

FEWEST_SCORES = {"cpu": 2**20, "cuda": 2**22}
"""Scores of a batch from which the plain path, which has fewer steps, need not be used."""
FEWEST_IN_CHUNKS = {"cpu": 0, "cuda": 2**28}
"""Scores of a chunk from which chunks are used, where scores are not passed over whole: chunks have
many small steps.
"""
CHUNK_BYTES = {"cpu": 2**30, "cuda": 2**32}
"""The most memory that the scores of a batch take."""
TILE_SCORES = {"cpu": 2**20, "cuda": 2**26}
"""Scores of a tile: as many as a CPU's cache holds. A GPU's kernels need no tiles."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Types of the products. In float16 gradients need a loss scale, which only backward knows."""


class Plan(NamedTuple):
    """How a batch is cut: the type of its products, examples per chunk, labels per tile; and
    whether all its scores are held, and passed over by kernels.
    """

    dtype: torch.dtype
    rows: int
    width: int
    whole: bool


def chunked_softmax(
    inputs: Inputs, margin: Separable, settings: Settings, smoothing: float
) -> Tensor | None:
    """The reduced exact loss, chunk by chunk; None where the plain path has to compute it."""
    pairs = inputs.pairs
    if settings.score_margin is not None:
        margin = Scaled(margin, 0.0)  # the positive has another score than its term of the sum
    apart = not margin.neutral
    plan = plan_of(inputs, len(pairs.label) if apart else len(inputs.hidden))
    if plan is None or (apart and smoothing):
        return None
    by_passes = not (apart or smoothing or settings.weighs_in_backward)
    whole = plan.whole and pairs.example is None and by_passes
    if not whole and plan.rows * plan.width < FEWEST_IN_CHUNKS[inputs.hidden.device.type]:
        return None
    check_margin(margin, len(inputs.weight), other="`weight`")
    hidden, weight, bias = exact_factors(inputs, settings)
    if whole:
        offset = log_rho_of_negatives(margin, weight)
        if bias is not None:
            offset = bias if offset is None else bias + offset
        kernels = exact_kernels(hidden.device, plan.dtype)
        passes = Passes(kernels.cross_entropy, kernels.cross_entropy_gradient_)
        return loss_of_passes(hidden, weight, offset, pairs, settings, plan.dtype, passes)
    if apart:  # each pair has its own sum
        hidden = pairs.rows(hidden)
    by_score = margin_of_scores(hidden, weight, pairs.label, settings)
    given = (hidden, weight, bias, settings.sample_weight)
    learns = any(tensor is not None and tensor.requires_grad for tensor in given)
    if not (learns and torch.is_grad_enabled()):
        targets = Targets.of(inputs, margin, settings, smoothing).with_margin(by_score)
        return settings.reduce(_losses(hidden, weight, bias, targets, plan, None), pairs)
    if settings.weighs_in_backward:
        return None
    targets = Targets.of(inputs, margin, settings, smoothing)
    return _ChunkedSoftmax.apply(hidden, weight, bias, by_score, targets, plan)  # pyright: ignore[reportReturnType]


def plan_of(inputs: Inputs, num_rows: int) -> Plan | None:
    """How to cut a batch; None for one that is small or has another type or device."""
    device = inputs.hidden.device.type
    num_labels = len(inputs.weight)
    dtype = inputs.hidden.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if device not in TILE_SCORES or dtype not in DTYPES or torch.compiler.is_compiling():
        return None
    if num_rows * num_labels < FEWEST_SCORES[device]:
        return None
    most = max(1, CHUNK_BYTES[device] // (aligned_stride(num_labels) * dtype.itemsize))
    rows = -(-num_rows // -(-num_rows // most))  # chunks of equal size
    if exact_kernels(inputs.hidden.device, dtype) is not None:
        return Plan(dtype, rows, num_labels, whole=rows == num_rows)
    width = max(1, TILE_SCORES[device] // rows)
    width -= width % 64 if width > 64 else 0  # tiles begin where a cache line does
    return Plan(dtype, rows, min(num_labels, width), whole=False)


class _ChunkedSoftmax(torch.autograd.Function):
    """Gradients are computed with the loss; backward multiplies them by that of the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        by_score: Tensor | None,
        targets: Targets,
        plan: Plan,
    ) -> Tensor:
        targets = targets.with_margin(by_score)
        gradients = Gradients.of(hidden, weight, bias, ctx.needs_input_grad, plan)
        loss = _losses(hidden, weight, bias, targets, plan, gradients)
        grad_weight = None if gradients.weight is None else gradients.weight.to(weight.dtype)
        grad_hidden = None if gradients.hidden is None else gradients.hidden.to(hidden.dtype)
        grad_by_score = None if by_score is None else slope_in_margin(loss, targets.scale)
        ctx.save_for_backward(grad_hidden, grad_weight, gradients.bias, grad_by_score)
        return torch.where(targets.scale == 0, 0.0, loss * targets.scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = handed_out(ctx, list(ctx.saved_tensors), grads[0], in_place=True)
        return *gradients, None, None


@torch.no_grad()
def _losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Targets,
    plan: Plan,
    gradients: Gradients | None,
) -> Float[Tensor, " p"]:
    """The loss of each pair; gradients are added to, if given."""
    with torch.autocast(hidden.device.type, enabled=False):
        offset = bias if targets.log_negative is None else targets.log_negative
        if bias is not None and targets.log_negative is not None:
            offset = bias + targets.log_negative
        tiles = Tiles(weight.to(plan.dtype), offset, plan.rows, plan.width)
        loss = torch.zeros_like(targets.scale)
        for start in range(0, len(hidden), plan.rows):
            rows = slice(start, min(start + plan.rows, len(hidden)))
            chunk = Chunk.of(rows, hidden[rows].to(plan.dtype), targets, tiles)
            filled = tiles.fill(chunk, with_positives=targets.log_positive is None)
            if targets.log_positive is None:
                sums = _among(chunk, filled, targets)
            else:
                sums = _apart(chunk, filled, targets, _positives(chunk, tiles.weight, bias))
            chunk.put(loss, sums.loss)
            if gradients is not None:
                numerators = tiles.numerators(filled, chunk.place, sums.value)
                gradients.add(chunk, numerators, sums.factor, tiles.weight)
        if targets.smoothing:
            mean = weight.mean(0, dtype=loss.dtype)
            scores = widened(hidden) @ mean + (0 if bias is None else bias.mean())
            loss -= targets.smoothing * scores[targets.row]
            if gradients is not None:
                gradients.subtract_mean(targets.smoothing * targets.row_scale, hidden, mean)
    return loss


class Sums(NamedTuple):
    """The loss of the pairs of a chunk, and how its numerators become the gradient of its scores.

    Attributes:
        loss: `[p]` the loss of each pair.
        value: `[p]` what replaces the numerator of its positive.
        factor: `[c]` what multiplies the numerators of a row.
    """

    loss: Float[Tensor, " p"]
    value: Float[Tensor, " p"]
    factor: Float[Tensor, " c"]


def _among(chunk: Chunk, filled: Filled, targets: Targets) -> Sums:
    """With ρ(y, y) = 1: log Σ_y' e^g_y' − g_y, g = f + log ρ₂, one sum for all labels of a row."""
    largest, total, below = filled
    loss = total.log()[chunk.row] - below
    if targets.smoothing:  # f_y here; the mean score is subtracted from all losses at once
        f = below + largest[chunk.row] * LN_2
        f = f if targets.log_negative is None else f - targets.log_negative[chunk.label]
        loss = loss + targets.smoothing * f
    share = (1 - targets.smoothing) * targets.share[chunk.pairs]
    value = below.exp() - share * total[chunk.row]
    return Sums(loss, value, targets.row_scale[chunk.rows] / total)


def _apart(chunk: Chunk, filled: Filled, targets: Targets, positive: Float[Tensor, " p"]) -> Sums:
    """log[1 + ρ₁(y) Σ_{y' ≠ y} ρ₂(y') e^(f_y' − f_y)], a sum for each pair, from its f_y."""
    largest, total, _ = filled
    assert targets.log_positive is not None
    above = largest * LN_2 - positive + total.log() + targets.log_positive[chunk.pairs]
    loss = torch.logaddexp(above, torch.zeros_like(above))
    factor = targets.scale[chunk.pairs] * above.sigmoid() / total
    return Sums(loss, -total, factor.where(total > 0, 0.0))


def _positives(chunk: Chunk, weight: Tensor, bias: Tensor | None) -> Float[Tensor, " p"]:
    """f_y of each pair."""
    scores = (widened(chunk.states) * widened(weight[chunk.label])).sum(1)
    return scores if bias is None else scores + bias[chunk.label]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Sums of the gradients of hidden states, table and biases; None where they are not needed.

    Attributes:
        hidden: `[b, d]`, at least in float32, as
        weight: `[L, d]`, unless it is written only once, and
        bias: `[L]`.
    """

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        needed: tuple[bool, ...],
        plan: Plan,
    ) -> Gradients:
        """Empty ones, for inputs like these."""
        wide = torch.promote_types(plan.dtype, torch.float32)
        once = plan.rows >= len(hidden) and weight.dtype == plan.dtype
        return cls(
            torch.empty_like(hidden, dtype=wide) if needed[0] else None,
            torch.empty_like(weight, dtype=plan.dtype if once else wide) if needed[1] else None,
            torch.zeros_like(bias) if needed[2] and bias is not None else None,
        )

    def add(
        self,
        chunk: Chunk,
        numerators: Iterator[tuple[slice, Tensor]],
        factor: Float[Tensor, " c"],
        weight: Tensor,
    ) -> None:
        """Add those of a chunk, where the gradients of scores are numerators times factors."""
        weighed = (widened(chunk.states) * factor[:, None]).to(chunk.states.dtype)
        grad_states = torch.empty_like(chunk.states, dtype=factor.dtype)
        first = chunk.rows.start == 0
        for labels, scores in numerators:
            if self.hidden is not None:
                add_product(grad_states, scores, weight[labels], fresh=labels.start == 0)
            if self.weight is not None:
                add_product(self.weight[labels], scores.T, weighed, fresh=first)
            if self.bias is not None:
                self.bias[labels] += factor @ widened(scores)
        if self.hidden is not None:
            torch.mul(grad_states, factor[:, None], out=self.hidden[chunk.rows])

    def subtract_mean(
        self, scale: Float[Tensor, " b"], hidden: Tensor, mean: Float[Tensor, " d"]
    ) -> None:
        """Subtract those of the mean score of each row times its factor."""
        if self.hidden is not None:
            self.hidden.addr_(scale, mean, alpha=-1)
        if self.weight is not None:
            self.weight.sub_(scale @ widened(hidden) / len(self.weight))
        if self.bias is not None:
            self.bias.sub_(scale.sum() / len(self.bias))
