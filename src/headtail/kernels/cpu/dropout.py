"""A bias and a dropout in one pass on a CPU, by numba."""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from headtail.kernels.compiled import keep_compiled
from headtail.kernels.gradient import Drop
from headtail.kernels.noise import drop_by_bytes

keep_compiled()


def drop_for(x: Tensor, share: float) -> Drop:
    """`drop_by_bytes` with compiled noise."""
    return drop_by_bytes(x, share, _noise)


def forward(x: Tensor, bias: Tensor, drop: Drop) -> None:
    """x ← (x + bias) · scale, or 0 where it is dropped; in place."""
    noise = drop.noise.numpy()
    _forward(x.detach().numpy(), bias.detach().numpy(), noise, drop.share, np.float32(drop.scale))


def backward(grad: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
    """The gradient of x, and `[1, d]` that of the bias."""
    grad_x = torch.empty_like(grad)
    grad_bias = torch.empty(1, grad.shape[1])
    arrays = grad.numpy(), grad_x.numpy(), grad_bias[0].numpy()
    _backward(*arrays, drop.noise.numpy(), drop.share, np.float32(drop.scale))
    return grad_x, grad_bias


@njit(cache=True)
@no_type_check
def _noise(seed, out):
    """`splitmix64`, one place at a time."""
    for i in range(len(out)):
        z = np.uint64(seed) + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = z ^ (z >> np.uint64(31))


@njit(cache=True)
@no_type_check
def _forward(x, bias, noise, dropped, scale):
    """x ← (x + bias) · scale where the byte of noise is at least `dropped`, else 0; in place."""
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[i, k] = (x[i, k] + bias[k]) * scale if noise[i, k] >= dropped else x.dtype.type(0)


@njit(cache=True)
@no_type_check
def _backward(grad, grad_x, grad_bias, noise, dropped, scale):
    """The gradients of x and, summed over rows, of the bias."""
    grad_bias[:] = 0
    for i in range(grad.shape[0]):
        for k in range(grad.shape[1]):
            grad_x[i, k] = grad[i, k] * scale if noise[i, k] >= dropped else grad.dtype.type(0)
            grad_bias[k] += grad_x[i, k]
