"""The sampled losses of a label table in one autograd node: fast twins of the plain path for training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.errors import check_kind
from headtail.kernels.gradient import LossGradients, RowGradient
from headtail.losses.terms import Settings, check_draw, check_input, check_table, directions
from headtail.optim import as_sparse, hand_over, values_of
from headtail.samplers.draw import Draw
from headtail.targets import Pairs, Target
from headtail.weightings import Weighting

Kernel = Callable[..., LossGradients]


class Ready(NamedTuple):
    """Checked arguments that a kernel takes."""

    kernels: Any
    pairs: Pairs
    a: Tensor
    b: Tensor


def ready_for_kernel(
    input: Tensor, weight: Tensor, bias: Tensor | None, target: Target, draw: Draw, weighting: Weighting, settings: Settings
) -> Ready | None:
    """Check what a loss was given; None where it is for the plain path."""
    if torch.compiler.is_compiling():
        return None
    check_table(input, weight, bias)
    pairs = Pairs.of(target, num_labels=len(weight), ignore_index=settings.ignore_index)
    check_draw(draw, pairs, len(weight))
    check_input(input, pairs)
    kernels = _kernels_for(input, weight, bias, draw, settings)
    if kernels is None:
        return None
    check_kind("weighting", weighting, Weighting, "Importance()")
    a, b = weighting.offsets(draw, pairs.label)
    return Ready(kernels, pairs, a, b) if b.dim() == draw.ids.dim() else None


def _kernels_for(input: Tensor, weight: Tensor, bias: Tensor | None, draw: Draw, settings: Settings) -> Any:
    """The module with the kernels for these, or None: other dtypes, a learnt temperature, losses that are not summed up."""
    if torch.is_autocast_enabled(input.device.type) or draw.ids.numel() == 0 or settings.reduction == "none":
        return None
    if isinstance(settings.temperature, Tensor) or (bias is not None and (bias.dim() == 1 or settings.temperature != 1)):
        return None
    if any(t is not None and (t.dtype != torch.float32 or not t.is_contiguous()) for t in (input, weight, bias)):
        return None
    if input.device.type == "cpu":
        from headtail.kernels import cpu_loss

        return cpu_loss
    return None


def loss_of_rows(
    kernel: Kernel,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    draw: Draw,
    a: Tensor,
    b: Tensor,
    settings: Settings,
    *extra: Any,
) -> Tensor:
    """The reduced loss by a kernel; `weight` and `bias` get row-sparse gradients."""
    input = pairs.rows(input)
    label = None if settings.collisions == "none" else pairs.label
    known = settings.masks(pairs, draw.ids) if settings.looks_for_known else None
    collisions = label, draw.ids, a, b, known, settings.scale(pairs).float()
    if settings.score == "dot":
        input = input if settings.temperature == 1 else input / settings.temperature
        return _LossOfRows.apply(kernel, input, weight, bias, pairs.label, draw.ids, collisions, extra)  # pyright: ignore[reportReturnType]
    # Directions are taken of the rows in use; what the kernel sees as its table is just them.
    rows = torch.cat([pairs.label, draw.ids.reshape(-1)])
    table = directions(F.embedding(rows, weight, sparse=True))
    place = torch.arange(len(rows), device=rows.device)
    positive, negatives = place[: len(pairs.label)], place[len(pairs.label) :].reshape(draw.ids.shape)
    if bias is not None:
        bias = F.embedding(rows, bias, sparse=True)
    return _LossOfRows.apply(kernel, directions(input) / settings.temperature, table, bias, positive, negatives, collisions, extra)  # pyright: ignore[reportReturnType]


class _LossOfRows(torch.autograd.Function):
    """Gradients are taken while the numbers are at hand, and handed to the optimiser row by row."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        positive: Tensor,
        negatives: Tensor,
        collisions: tuple[Any, ...],
        extra: tuple[Any, ...],
    ) -> Tensor:
        found = kernel(input, weight, bias, positive, negatives, *collisions, *extra)
        scale = collisions[-1]
        ctx.save_for_backward(input, positive, negatives)
        ctx.found, ctx.tables = found, (weight, bias)
        return torch.where(scale == 0, 0.0, found.loss * scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        input, positive, negatives = ctx.saved_tensors
        found, (weight, bias) = ctx.found, ctx.tables
        by = grads[0]
        once = input.device.type == "cpu" and float(by) == 1  # a loss that is used as it is needs no second pass
        of_input = found.of_input if once else found.of_input * by
        scores = torch.cat([found.of_positive, found.of_scores.reshape(-1)])
        scores = scores if once else scores * by
        rows = torch.cat([positive, negatives.reshape(-1)])
        if found.of_negatives is None:  # an entry is the gradient of its score times its example's input
            point = torch.arange(len(input), device=input.device)
            gradient = RowGradient(rows, input.detach(), torch.cat([point, point.repeat_interleave(negatives.shape[1])]), scores)
        else:  # of a shared negative it is a whole row
            coefs = torch.cat([found.of_positive, torch.ones_like(found.of_scores)])
            gradient = RowGradient(rows, torch.cat([input.detach(), found.of_negatives]), None, coefs if once else coefs * by)
        of_bias = None if bias is None else _gradient_of(bias, RowGradient(rows, scores[:, None]))
        return None, of_input, _gradient_of(weight, gradient), of_bias, None, None, None, None


def _gradient_of(table: Tensor, gradient: RowGradient) -> Tensor | None:
    """What autograd gets: nothing if an optimiser has taken it, rows of a table, or a row an entry where rows were gathered."""
    if not table.is_leaf:
        return values_of(gradient)
    return None if hand_over(table, gradient) else as_sparse(table, gradient)
