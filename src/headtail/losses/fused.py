"""The sampled losses of a label table in one autograd node: fast twins of the plain path for
training steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.core.draw import Draw
from headtail.core.weightings import Weighting, kernel_log_weights
from headtail.device.side_streams import side_stream, wait_for
from headtail.kernels.dispatch import grouping_kernel, loss_kernels
from headtail.kernels.gradient import LossGradients, RowGradient
from headtail.losses.inputs import Inputs, directions
from headtail.losses.options import Settings
from headtail.rows.gradients import for_autograd, values_of
from headtail.rows.link import linked, taker_of
from headtail.rows.near import near_rows
from headtail.rows.rounding import widened

Kernel = Callable[..., LossGradients]
UNSCALED = "headtail: unscaled"
"""The note on a node of the graph that its loss is used as it is."""


class Weighed(NamedTuple):
    """What kernels compare, weigh and scale draws by, in the order of their arguments.

    Attributes:
        own: `[p]` what a draw must differ from to count; None where all draws count.
        drawn: the same of each draw.
        a: `[p]` and
        b: like the ids of the draw: the log-weights, each one number where all are the same.
        known: `[p, m]` further draws that do not count, or None.
        scale: each pair's factor in the reduced loss.
    """

    own: Tensor | None
    drawn: Tensor
    a: Tensor | float
    b: Tensor | float
    known: Tensor | None
    scale: Tensor | float


def fused_loss(
    inputs: Inputs,
    draw: Draw,
    weighting: Weighting,
    settings: Settings,
    piece: tuple[int, float] | None = None,
) -> Tensor | None:
    """Compute the reduced loss by a kernel, with row-sparse gradients; None where there is none.

    Args:
        inputs: the batch and its label table.
        draw: the negatives.
        weighting: their weights.
        settings: options of the loss.
        piece: the code of a decoupled loss; None for the softmax.
    """
    if not inputs.sparse or torch.compiler.is_compiling():
        return None
    kernels = None
    if _has_kernel_form(inputs.bias, draw, settings):
        kernels = loss_kernels(inputs.hidden, *inputs.tables)
    if kernels is None:
        return None
    pairs = inputs.pairs
    a, b = kernel_log_weights(weighting, draw, pairs.label)
    if not _fit(draw, pairs.label, a, b):
        return None
    own, drawn = settings.compared(pairs, draw, weighting) or (None, draw.ids)
    more_masked = settings.looks_for_known or draw.groups is not None
    known = settings.masks(pairs, draw, weighting) if more_masked else None
    scale = settings.scale(pairs)
    scale = scale.float() if isinstance(scale, Tensor) else scale
    kernel = kernels.sampled_softmax
    if piece is not None:
        code, margin = piece
        kernel = partial(kernels.sampled_decoupled, piece=code, margin=margin)
    tables = _tables_in_use(inputs, draw, settings)
    by_score = margin_of_scores(*tables[:2], tables[3], settings)
    return _LossOfRows.apply(  # pyright: ignore[reportReturnType]
        kernel, *tables, Weighed(own, drawn, a, b, known, scale), by_score
    )


def _has_kernel_form(bias: Tensor | None, draw: Draw, settings: Settings) -> bool:
    """Whether kernels know this loss: summed, with a fixed temperature, and a bias as a table that
    no temperature divides.
    """
    if draw.ids.numel() == 0 or settings.reduction == "none":
        return False
    if isinstance(settings.temperature, Tensor):
        return False
    return bias is None or (bias.dim() != 1 and settings.temperature == 1)


def _fit(draw: Draw, label: Tensor, a: Tensor | float, b: Tensor | float) -> bool:
    """Whether all sizes are those that kernels rely on. They are not where a margin does not split,
    nor where a sampler or a weighting of your own returns others: plain PyTorch refuses these.
    """
    if not draw.shared and len(draw.ids) != len(label):
        return False
    fits = not isinstance(a, Tensor) or a.shape == label.shape
    return fits and (not isinstance(b, Tensor) or b.shape == draw.ids.shape)


def _tables_in_use(
    inputs: Inputs, draw: Draw, settings: Settings
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Hidden states, weight and bias as a kernel takes them, and the rows of positives and
    negatives there.
    """
    label = inputs.pairs.label
    hidden = inputs.pairs.rows(inputs.hidden)
    if settings.score == "dot":
        if settings.temperature != 1:
            hidden = hidden / settings.temperature
        return hidden, inputs.weight, inputs.bias, label, draw.ids
    # Only the rows in use get directions: they are the whole table of the kernel.
    rows = inputs.rows_with(draw)
    weight = directions(F.embedding(rows, inputs.weight, sparse=True))
    bias = None if inputs.bias is None else F.embedding(rows, inputs.bias, sparse=True)
    place = torch.arange(len(rows), device=rows.device)
    negatives = place[len(label) :].reshape(draw.ids.shape)
    return directions(hidden) / settings.temperature, weight, bias, place[: len(label)], negatives


def margin_of_scores(
    hidden: Tensor, weight: Tensor, positive: Tensor, settings: Settings
) -> Tensor | None:
    """The nats by which each positive must win more, by its own cosine; None without such a margin.

    Args:
        hidden: `[p, d]` directions, divided by the temperature.
        weight: directions of labels.
        positive: `[p]` the row of each positive there.
        settings: options of the loss.
    """
    if settings.score_margin is None:
        return None
    scores = (widened(hidden) * widened(weight[positive])).sum(-1)
    return settings.score_margin.log_rho(scores * settings.temperature, settings.temperature)


def slope_in_margin(loss: Tensor, scale: Tensor | float) -> Tensor:
    """The gradient of Σ scale · log(1 + e^a Σ) by a: 1 − e^(−loss) each."""
    slope = -torch.expm1(-loss) * scale
    return torch.where(scale == 0, 0.0, slope) if isinstance(scale, Tensor) else slope


class _LossOfRows(torch.autograd.Function):
    """Gradients are computed with the loss, and handed to the optimiser row by row."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        positive: Tensor,
        negatives: Tensor,
        weighed: Weighed,
        by_score: Tensor | None,
    ) -> Tensor:
        if by_score is not None:  # it adds to the log-weight of all negatives of its example
            weighed = weighed._replace(a=by_score.double() + weighed.a)
        places = _places(weight, bias, positive, negatives) if ctx.needs_input_grad[2] else None
        near = near_rows(weight, bias, positive, negatives)
        result = kernel(hidden, *near[:4], *weighed)
        # Autograd frees what is saved here after the last backward, and not before.
        rows, points = near.in_table(result.rows), None
        if places is not None:
            rows, points = places.rows, places.points
        gradients = result.grad_input, result.grad_scores, result.grad_rows
        if by_score is not None:
            by_score = slope_in_margin(result.loss, weighed.scale)
        gradients = *gradients, by_score
        ctx.save_for_backward(hidden, positive, negatives, *gradients, rows, points)
        ctx.tables = weight, bias
        if result.total is not None:
            return result.total
        if not isinstance(weighed.scale, Tensor):  # one factor for all
            return result.loss.sum() * weighed.scale
        return torch.where(weighed.scale == 0, 0.0, result.loss * weighed.scale).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The refusal of a second derivative takes as long as the rest, and is rarely of use.
        gradients = _gradients_once if torch.is_grad_enabled() else _gradients
        *of_tables, by_score = gradients(ctx, grads[0])
        return None, *of_tables, None, None, None, by_score


def _gradients(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
    """Of hidden states, weight and bias, and of the margin by score."""
    hidden, positive, negatives, *gradients, rows, points = ctx.saved_tensors
    grad_hidden, grad_scores, grad_rows, by_score = handed_out(ctx, gradients, grad_loss)
    grouped = points is not None
    if grouped:
        wait_for(hidden.device, "entries")
    elif rows is None:
        rows = torch.cat([positive, negatives.reshape(-1)])
    if grad_rows is None:
        point = torch.arange(len(hidden), device=hidden.device)
        owner = torch.cat([point, point.repeat_interleave(negatives.shape[1])])
        grad_weight = RowGradient(rows, hidden.detach(), owner, grad_scores)
    else:
        grad_weight = RowGradient(rows, grad_rows, points, grouped=grouped)
    weight, bias = ctx.tables
    grad_weight = _gradient_of(weight, grad_weight, ctx.next_functions[1][0])
    grad_bias = None
    if bias is not None:
        grad_bias = RowGradient(rows, grad_scores[:, None], points, grouped=grouped)
        grad_bias = _gradient_of(bias, grad_bias, ctx.next_functions[2][0])
    if grad_hidden.dtype != hidden.dtype:
        grad_hidden = grad_hidden.to(hidden.dtype)
    return grad_hidden, grad_weight, grad_bias, by_score


_gradients_once = once_differentiable(_gradients)


def _places(
    weight: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor
) -> RowGradient | None:
    """On a GPU, where gradients go, computed once for weight and bias while the loss is computed.

    None where no optimiser takes entries.
    """
    grouped = grouping_kernel(weight.device) if weight.is_cuda else None
    if grouped is None or negatives.dim() != 1:
        return None
    if any(table is not None and taker_of(table) is None for table in (weight, bias)):
        return None
    with side_stream(weight.device, "entries"):  # as all grouping: a table has one set of counters
        rows = torch.cat([positive, negatives])
        return grouped(RowGradient(rows, rows[:, None]), len(weight), linked(weight).counters)


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
    """Whether a loss is used as it is. On a GPU a note says so: a look would make the host wait."""
    return UNSCALED in node.metadata or (gradient.device.type == "cpu" and float(gradient) == 1)


def handed_out(
    node: Any, gradients: list[Any], grad_loss: Tensor, *, in_place: bool = False
) -> list[Any]:
    """The saved gradients times the gradient of the loss; in place, they are no views of each
    other.
    """
    if not _is_unscaled(node, grad_loss):
        times = torch.mul if not in_place or graph_is_kept() else Tensor.mul_
        return [None if grad is None else times(grad, grad_loss) for grad in gradients]
    if graph_is_kept():  # they are needed again, and whoever gets them may change them
        return [None if grad is None else grad.clone() for grad in gradients]
    return gradients


def _gradient_of(table: Tensor, gradient: RowGradient, node: Any) -> Tensor | None:
    """What autograd gets: entries of a table, or a row per entry where rows were gathered."""
    return for_autograd(table, gradient, node) if table.is_leaf else values_of(gradient)


def graph_is_kept() -> bool:
    """Whether a backward may follow this one (`retain_graph=True`)."""
    task = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return task._get_current_graph_task_keep_graph()
