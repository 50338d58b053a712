"""Dropout that costs little on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(input: Tensor, share: float, training: bool = True) -> Tensor:
    """Zero a random share of the numbers and scale the others up, so that the mean stays.

    On a CPU eight decisions are taken from each 64-bit random number, which is several times as fast as torch's one each: there the
    share is rounded to a multiple of 1/256, and the scale is that of the rounded share.

    Args:
        input: any shape.
        share: from 0 up to but not including 1.
        training: False leaves everything as it is.

    >>> out = dropout(torch.ones(1000), 0.5)
    >>> sorted(set(out.tolist()))
    [0.0, 2.0]
    """
    if not training or share == 0:
        return input
    if input.device.type != "cpu":
        return F.dropout(input, share)
    dropped = min(255, max(1, round(share * 256)))
    words = torch.empty((input.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: input.numel()].reshape(input.shape) >= dropped
    return input * (kept * (256 / (256 - dropped)))
