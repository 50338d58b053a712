"""Norm: batch normalisation together with what follows it in a residual network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headtail.kernels.dispatch import norm_kernels

MOMENTUM = 0.1
EPS = 1e-5


class Norm(nn.Module):
    r"""$y = \mathrm{relu}\big(\gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta + s\big)$,
    s a shortcut or 0.

    In training, μ and σ² are those of the batch; afterwards they are running means (momentum 0.1,
    unbiased variance), as in torch. On a GPU two kernels do all of it, and two more its gradients.

    Args:
        channels: C.
        relu: whether the rectifier follows.
        gamma: the initial value of γ.

    >>> y = Norm(4)(torch.randn(2, 4, 3, 3))
    >>> y.shape, bool((y >= 0).all())
    (torch.Size([2, 4, 3, 3]), True)
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, relu: bool = True, gamma: float = 1.0) -> None:
        super().__init__()
        self.relu = relu
        self.weight = nn.Parameter(torch.full((channels,), gamma))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(
        self, x: Float[Tensor, "n C h w"], shortcut: Tensor | None = None
    ) -> Float[Tensor, "n C h w"]:
        """Normalised, added and rectified."""
        running = self.running_mean, self.running_var
        kernels = norm_kernels(x, shortcut) if self.training else None
        if kernels is not None:
            return _Norm.apply(kernels, x, self.weight, self.bias, shortcut, self.relu, running)  # pyright: ignore[reportReturnType]
        return plain_norm(x, self.weight, self.bias, shortcut, self.relu, running, self.training)


def plain_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    relu: bool,
    running: tuple[Tensor, Tensor],
    training: bool = True,
) -> Tensor:
    """`Norm` in torch's operations."""
    y = F.batch_norm(x, *running, weight, bias, training, MOMENTUM, EPS)
    y = y if shortcut is None else y + shortcut
    return F.relu(y) if relu else y


class _Norm(torch.autograd.Function):
    """`plain_norm` in training, by kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        relu: bool,
        running: tuple[Tensor, Tensor],
    ) -> Tensor:
        y, moments = kernels.norm(x, weight, bias, shortcut, relu, running, MOMENTUM, EPS)
        ctx.kernels = kernels
        ctx.save_for_backward(x, y if relu else None, weight, moments)
        ctx.added = shortcut is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y, weight, moments = ctx.saved_tensors
        grad_x, grad_weight, grad_bias, grad_shortcut = ctx.kernels.norm_backward(
            grads[0], x, y, weight, moments, ctx.added
        )
        return None, grad_x, grad_weight, grad_bias, grad_shortcut, None, None
