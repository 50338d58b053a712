"""The sampled losses of a label table in one autograd node: fast twins of the plain path for
training steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.core.draw import Draw
from headtail.core.targets import Pairs, Target
from headtail.core.weightings import Weighting, kernel_log_weights
from headtail.device.side_streams import beside, wait_for
from headtail.kernels.dispatch import grouping_kernel, loss_kernels
from headtail.kernels.gradient import LossGradients, RowGradient
from headtail.losses.options import Settings
from headtail.losses.terms import check_draw, check_input, check_table, check_weighting, directions
from headtail.rows.gradients import for_autograd, values_of
from headtail.rows.link import taker_of

Kernel = Callable[..., LossGradients]
UNSCALED = "headtail: unscaled"
"""The note on a node of the graph that its loss is used as it is."""


class Ready(NamedTuple):
    """Checked arguments that a kernel takes.

    Attributes:
        kernels: the module with the kernels.
        pairs: the targets.
        collisions: what kernels compare, weigh and scale by: `[p]` what a draw must differ from
            (None where all draws count), the same of each draw, a, b, `[p, m]` further draws that
            do not count (or None), and each pair's factor.
    """

    kernels: Any
    pairs: Pairs
    collisions: tuple[
        Tensor | None, Tensor, Tensor | float, Tensor | float, Tensor | None, Tensor | float
    ]


def ready_for_kernel(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    draw: Draw,
    weighting: Weighting,
    settings: Settings,
) -> Ready | None:
    """Check what a loss was given; None where it is for the plain path."""
    if torch.compiler.is_compiling():
        return None
    check_table(input, weight, bias)
    pairs = Pairs.of(target, num_labels=len(weight), ignore_index=settings.ignore_index)
    check_draw(draw, pairs, len(weight))
    check_input(input, pairs)
    tensors = [tensor for tensor in (input, weight, bias) if tensor is not None]
    kernels = loss_kernels(*tensors) if _has_kernel_form(bias, draw, settings) else None
    if kernels is None:
        return None
    check_weighting(weighting, "`weight`", len(weight))
    a, b = kernel_log_weights(weighting, draw, pairs.label)
    if isinstance(b, Tensor) and b.dim() != draw.ids.dim():
        return None
    own, drawn = settings.compared(pairs, draw, weighting) or (None, draw.ids)
    known = settings.masks(pairs, draw, weighting) if settings.looks_for_known else None
    scale = settings.scale(pairs)
    scale = scale.float() if isinstance(scale, Tensor) else scale
    return Ready(kernels, pairs, (own, drawn, a, b, known, scale))


def _has_kernel_form(bias: Tensor | None, draw: Draw, settings: Settings) -> bool:
    """Whether kernels know this loss: summed, with a fixed temperature, and a bias as a table that
    no temperature divides.
    """
    if draw.ids.numel() == 0 or settings.reduction == "none":
        return False
    if isinstance(settings.temperature, Tensor):
        return False
    return bias is None or (bias.dim() != 1 and settings.temperature == 1)


def loss_of_rows(
    kernel: Kernel,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    draw: Draw,
    ready: Ready,
    settings: Settings,
    *extra: Any,
) -> Tensor:
    """The reduced loss by a kernel; `weight` and `bias` get row-sparse gradients."""
    pairs = ready.pairs
    input = pairs.rows(input)
    if settings.score == "dot":
        input = input if settings.temperature == 1 else input / settings.temperature
        given = kernel, input, weight, bias, pairs.label, draw.ids
        return _LossOfRows.apply(*given, ready.collisions, extra)  # pyright: ignore[reportReturnType]
    # Directions are taken of the rows in use; what the kernel sees as its table is just them.
    rows = torch.cat([pairs.label, draw.ids.reshape(-1)])
    table = directions(F.embedding(rows, weight, sparse=True))
    place = torch.arange(len(rows), device=rows.device)
    positive = place[: len(pairs.label)]
    negatives = place[len(pairs.label) :].reshape(draw.ids.shape)
    if bias is not None:
        bias = F.embedding(rows, bias, sparse=True)
    given = kernel, directions(input) / settings.temperature, table, bias, positive, negatives
    return _LossOfRows.apply(*given, ready.collisions, extra)  # pyright: ignore[reportReturnType]


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
        places = _places(weight, bias, positive, negatives) if ctx.needs_input_grad[2] else None
        result = kernel(input, weight, bias, positive, negatives, *collisions, *extra)
        # Autograd frees what is saved here after the last backward, and not before.
        rows, points = (None, None) if places is None else (places.rows, places.points)
        gradients = result.grad_input, result.grad_scores, result.grad_rows
        ctx.save_for_backward(input, positive, negatives, *gradients, rows, points)
        ctx.tables = weight, bias
        if result.total is not None:
            return result.total
        scale = collisions[-1]
        if isinstance(scale, float):  # one factor for all
            return result.loss.sum() * scale
        return torch.where(scale == 0, 0.0, result.loss * scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        input, positive, negatives, of_input, of_scores, of_rows, rows, points = ctx.saved_tensors
        if not _is_unscaled(ctx, grads[0]):
            of_input = of_input * grads[0]
            of_scores = of_scores * grads[0]
            of_rows = None if of_rows is None else of_rows * grads[0]
        elif _graph_is_kept():  # what is handed out may be changed, and is needed again
            of_input = of_input.clone()
            of_scores = of_scores.clone()
            of_rows = None if of_rows is None else of_rows.clone()
        grouped = points is not None
        if grouped:
            wait_for(input.device, "entries")
        else:
            rows = torch.cat([positive, negatives.reshape(-1)])
        if of_rows is None:
            point = torch.arange(len(input), device=input.device)
            owner = torch.cat([point, point.repeat_interleave(negatives.shape[1])])
            of_weight = RowGradient(rows, input.detach(), owner, of_scores)
        else:
            of_weight = RowGradient(rows, of_rows, points, grouped=grouped)
        weight, bias = ctx.tables
        of_weight = _gradient_of(weight, of_weight, ctx.next_functions[1][0])
        of_bias = None
        if bias is not None:
            of_bias = RowGradient(rows, of_scores[:, None], points, grouped=grouped)
            of_bias = _gradient_of(bias, of_bias, ctx.next_functions[2][0])
        return None, of_input.to(input.dtype), of_weight, of_bias, None, None, None, None


def _places(
    weight: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor
) -> RowGradient | None:
    """On a GPU, where gradients go, computed once for weight and bias while the loss is computed.

    None where no optimiser takes entries.
    """
    tables = [table for table in (weight, bias) if table is not None]
    grouped = grouping_kernel(weight.device)
    has_takers = all(taker_of(table) is not None for table in tables)
    if grouped is None or negatives.dim() != 1 or not has_takers:
        return None
    with beside(weight.device, "entries"):  # as all grouping, which has one workspace
        rows = torch.cat([positive, negatives])
        return grouped(RowGradient(rows, rows[:, None]), len(weight))


def backward(loss: Tensor, one: Tensor | None = None) -> None:
    """`loss.backward()` for a loss that is not scaled: on a GPU its gradients are not multiplied by
    1.

    Args:
        loss: as a head returned it.
        one: a tensor that holds 1, where a captured step should not have to make it.
    """
    node: Any = loss.grad_fn
    notes = {} if node is None else node.metadata
    notes[UNSCALED] = True
    try:
        loss.backward(one)
    finally:
        del notes[UNSCALED]


def _is_unscaled(node: Any, gradient: Tensor) -> bool:
    """Whether a loss is used as it is; on a GPU, where a look would make the host wait, by a note."""
    return UNSCALED in node.metadata or (gradient.device.type == "cpu" and float(gradient) == 1)


def _gradient_of(table: Tensor, gradient: RowGradient, node: Any) -> Tensor | None:
    """What autograd gets: entries of a table, or a row per entry where rows were gathered."""
    return for_autograd(table, gradient, node) if table.is_leaf else values_of(gradient)


def _graph_is_kept() -> bool:
    """Whether a backward may follow this one (`retain_graph=True`)."""
    task = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return task._get_current_graph_task_keep_graph()
