"""Norm: batch normalisation together with what follows it in a residual network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headtail.kernels.compiled import HAS_TRITON

MOMENTUM = 0.1
EPS = 1e-5


class Norm(nn.Module):
    r"""$y = \mathrm{relu}\big(\gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta + s\big)$,
    s a shortcut or 0.

    μ and σ² are those of the batch in training, and running means of them afterwards (momentum 0.1,
    unbiased variance), as in torch. On a GPU two kernels do all of it, and two more its gradients.

    Args:
        channels: C.
        relu: whether the rectifier follows.
        gamma: where γ starts.

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
        if self.training and fits(x, shortcut):
            running = self.running_mean, self.running_var
            return _Norm.apply(x, self.weight, self.bias, shortcut, self.relu, running)  # pyright: ignore[reportReturnType]
        return plain_norm(
            x,
            self.weight,
            self.bias,
            shortcut,
            self.relu,
            (self.running_mean, self.running_var),
            self.training,
        )


def plain_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    relu: bool,
    running: tuple[Tensor, Tensor],
    training: bool = True,
) -> Tensor:
    """The same in torch's operations."""
    y = F.batch_norm(x, *running, weight, bias, training, MOMENTUM, EPS)
    y = y if shortcut is None else y + shortcut
    return F.relu(y) if relu else y


def fits(x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels take these: on a GPU, channels last, a number of channels that is a power
    of two.
    """
    if (
        not HAS_TRITON
        or x.device.type != "cuda"
        or x.dtype not in (torch.float32, torch.bfloat16)
        or torch.compiler.is_compiling()
    ):
        return False
    there = [x] if shortcut is None else [x, shortcut]
    same = all(
        one.is_contiguous(memory_format=torch.channels_last) and one.dtype == x.dtype
        for one in there
    )
    return same and x.numel() > x.shape[1] >= 8 and x.shape[1] & (x.shape[1] - 1) == 0


class _Norm(torch.autograd.Function):
    """`plain_norm` in training by the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        relu: bool,
        running: tuple[Tensor, Tensor],
    ) -> Tensor:
        from headtail.kernels.triton import norm as cuda_norm

        y, moments = cuda_norm.norm(x, weight, bias, shortcut, relu, running, MOMENTUM, EPS)
        ctx.save_for_backward(x, y if relu else None, weight, moments)
        ctx.added = shortcut is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from headtail.kernels.triton import norm as cuda_norm

        x, y, weight, moments = ctx.saved_tensors
        of_x, of_weight, of_bias, of_shortcut = cuda_norm.norm_backward(
            grads[0], x, y, weight, moments, ctx.added
        )
        return of_x, of_weight, of_bias, of_shortcut, None, None
