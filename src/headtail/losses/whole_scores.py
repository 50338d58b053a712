"""Losses over all labels from scores held whole, on a GPU: scores become their own gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.core.margins import Separable
from headtail.core.targets import Pairs
from headtail.losses.fused import graph_is_kept
from headtail.losses.options import Settings

ALIGNED = 64
"""Rows of scores begin at multiples of this many numbers, and labels beyond the last multiple are
multiplied separately: products of matrices of other sizes take a GPU two to three times as long.
"""


class Passes(NamedTuple):
    """What a loss does with its scores.

    Attributes:
        losses: `(scores, offset, label, scale)` → `[b]` scale · loss of each row, and what the
            other pass needs of them, or None.
        gradient_: `(scores, offset, label, scale, kept, grad)`: replaces scores by the gradient of
            grad · Σ losses.
    """

    losses: Callable[..., tuple[Tensor, Tensor | None]]
    gradient_: Callable[..., None]


def loss_of_passes(
    hidden: Float[Tensor, "b d"],
    weight: Float[Tensor, "L d"],
    offset: Float[Tensor, " L"] | None,
    pairs: Pairs,
    settings: Settings,
    dtype: torch.dtype,
    passes: Passes,
) -> Float[Tensor, ""]:
    """The reduced loss of the scores hidden · weightᵀ + offset, for a label of each example.

    `dtype` is that of the products.
    """
    scale = settings.scale(pairs)
    if not isinstance(scale, Tensor):
        scale = torch.full(pairs.label.shape, scale, device=hidden.device)
    if offset is not None:
        offset = as_kernels_read(offset)
    scale = as_kernels_read(scale)
    return WholeScores.apply(hidden, weight, offset, pairs.label, scale, dtype, passes)  # pyright: ignore[reportReturnType]


def as_kernels_read(numbers: Tensor) -> Float[Tensor, " n"]:
    """In float32 and without gaps, such as a column of a table has."""
    return numbers.float().contiguous()


def log_rho_of_negatives(margin: Separable, weight: Tensor) -> Float[Tensor, " L"] | None:
    """log ρ₂ of all labels in float32; None where ρ₂ = 1."""
    if margin.one_for_negatives:
        return None
    return as_kernels_read(margin.log_negative(torch.arange(len(weight), device=weight.device)))


class WholeScores(torch.autograd.Function):
    """Σ scale · loss of the scores hidden · weightᵀ + offset.

    Three products, as in plain PyTorch, and one pass over the scores in each direction.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "b d"],
        weight: Float[Tensor, "L d"],
        offset: Float[Tensor, " L"] | None,
        label: Int[Tensor, " b"],
        scale: Float[Tensor, " b"],
        dtype: torch.dtype,
        passes: Passes,
    ) -> Float[Tensor, ""]:
        """The loss; `dtype` is that of the products."""
        with torch.autocast(hidden.device.type, enabled=False):
            left = hidden.to(dtype)
            right = weight.to(dtype)
            scores = aligned_product(left, right)
        losses, kept = passes.losses(scores, offset, label, scale)
        ctx.save_for_backward(left, right, offset, label, scale, scores, kept)
        ctx.passes = passes
        ctx.dtypes = hidden.dtype, weight.dtype
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of hidden states, table and offset."""
        left, right, offset, label, scale, scores, kept = ctx.saved_tensors
        if graph_is_kept():  # a second pass needs the scores
            scores = scores.clone()
        ctx.passes.gradient_(scores, offset, label, scale, kept, grads[0])
        needed = ctx.needs_input_grad
        of_hidden = of_weight = None
        with torch.autocast(scores.device.type, enabled=False):
            if needed[0]:
                of_hidden = product_over_labels(scores, right).to(ctx.dtypes[0])
            if needed[1]:
                of_weight = torch.empty_like(right)
                for labels in aligned_parts(len(right)):
                    torch.mm(scores[:, labels].T, left, out=of_weight[labels])
                of_weight = of_weight.to(ctx.dtypes[1])
        of_offset = scores.sum(0, dtype=scale.dtype) if needed[2] else None
        return of_hidden, of_weight, of_offset, None, None, None, None


def aligned_parts(num_labels: int) -> list[slice]:
    """The labels up to the last multiple of `ALIGNED`, and those beyond."""
    most = num_labels - num_labels % ALIGNED
    parts = (slice(0, most), slice(most, num_labels))
    return [part for part in parts if part.start < part.stop]


def aligned_stride(num_labels: int) -> int:
    """How many numbers a row of scores takes. Few labels are not worth more memory."""
    return num_labels if num_labels < ALIGNED else -(-num_labels // ALIGNED) * ALIGNED


def aligned_product(left: Float[Tensor, "b d"], right: Float[Tensor, "L d"]) -> Tensor:
    """`[b, L]` left · rightᵀ, in aligned rows."""
    room = left.new_empty(len(left), aligned_stride(len(right)))
    product = room[:, : len(right)]
    for labels in aligned_parts(len(right)):
        torch.mm(left, right[labels].T, out=product[:, labels])
    return product


def product_over_labels(scores: Float[Tensor, "b L"], right: Float[Tensor, "L d"]) -> Tensor:
    """`[b, d]` scores · right."""
    first, *rest = aligned_parts(len(right))
    product = scores[:, first] @ right[first]
    for labels in rest:
        product.addmm_(scores[:, labels], right[labels])
    return product
