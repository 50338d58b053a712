"""The cross-entropy of scores that are held whole, on a GPU: scores become their own gradient."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.kernels.dispatch import exact_kernels
from headtail.losses.fused import graph_is_kept


class CrossEntropy(torch.autograd.Function):
    """Σ scale · (log Σ_y' e^g_y' − g_y), g = hidden · weightᵀ + offset.

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
    ) -> Float[Tensor, ""]:
        """The loss; `dtype` is that of the products."""
        kernels = exact_kernels(hidden.device, dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            left = hidden.to(dtype)
            right = weight.to(dtype)
            scores = left @ right.T
        losses, log_sum = kernels.cross_entropy(scores, offset, label, scale)
        ctx.save_for_backward(left, right, offset, label, scale, scores, log_sum)
        ctx.kernels = kernels
        ctx.dtypes = hidden.dtype, weight.dtype
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of hidden states, table and offset."""
        left, right, offset, label, scale, scores, log_sum = ctx.saved_tensors
        if graph_is_kept():  # a second pass needs the scores
            scores = scores.clone()
        ctx.kernels.cross_entropy_gradient_(scores, offset, label, scale, log_sum, grads[0])
        needed = ctx.needs_input_grad
        of_hidden = (scores @ right).to(ctx.dtypes[0]) if needed[0] else None
        of_weight = (scores.T @ left).to(ctx.dtypes[1]) if needed[1] else None
        of_offset = scores.sum(0, dtype=scale.dtype) if needed[2] else None
        return of_hidden, of_weight, of_offset, None, None, None
