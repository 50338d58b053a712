"""Random bytes that decide what dropout zeroes on a CPU: the same with and without a compiler."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headtail.kernels.gradient import Drop


def splitmix64(seed: int, out: np.ndarray) -> None:
    """Fill a uint64 array with 64 random bits per place (Steele, Lea and Flood, 2014).

    Every place is computed from its own position, which is why a kernel gives the same bits.
    """
    z = np.arange(1, len(out) + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out[:] = z ^ (z >> np.uint64(31))


def drop_by_bytes(
    x: Tensor, share: float, fill: Callable[[int, np.ndarray], None] = splitmix64
) -> Drop:
    """Decide what is dropped of x by a random byte per number.

    Their seed is one number of torch's generator. The share is rounded to a multiple of 1/256.

    Args:
        x: any shape, on a CPU.
        share: from 0 up to but not including 1.
        fill: writes the random bits that belong to a seed; a kernel, or `splitmix64`.
    """
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
    fill(int(torch.randint(2**62, ())), words.numpy().view(np.uint64))
    noise = words.view(torch.uint8)[: x.numel()].reshape(x.shape)
    dropped = min(255, max(1, round(share * 256)))
    return Drop(noise, dropped, 256 / (256 - dropped))
