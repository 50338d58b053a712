"""A bias and a dropout in one pass on the CPU, by numba."""

from __future__ import annotations

from typing import no_type_check  # numba takes bare functions, not those that `pytest --shapes` has wrapped

import numpy as np
from numba import njit

from headtail.kernels.compiled import keep_compiled

keep_compiled()


@njit(cache=True)
@no_type_check
def noise(seed, out):
    """64 random bits a place: splitmix64 (Steele, Lea and Flood, 2014), in which every place is computed by itself."""
    for i in range(len(out)):
        z = np.uint64(seed) + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = z ^ (z >> np.uint64(31))


@njit(cache=True)
@no_type_check
def forward(x, bias, noise, dropped, scale):
    """x ← (x + bias) · scale where the byte of noise is at least `dropped`, else 0; in place."""
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[i, k] = (x[i, k] + bias[k]) * scale if noise[i, k] >= dropped else x.dtype.type(0)


@njit(cache=True)
@no_type_check
def backward(grad, of_x, of_bias, noise, dropped, scale):
    """The gradients of x and, summed over rows, of the bias."""
    of_bias[:] = 0
    for i in range(grad.shape[0]):
        for k in range(grad.shape[1]):
            of_x[i, k] = grad[i, k] * scale if noise[i, k] >= dropped else grad.dtype.type(0)
            of_bias[k] += of_x[i, k]
