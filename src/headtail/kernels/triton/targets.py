"""Targets and which of them count, in one pass on CUDA by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Targets at a time."""


def counted(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """`[p]` labels, in which ignored ones are replaced by the first that counts (0 if none does);
    which are ignored; and 1 / the number of those that count, 0 for the others.

    One program walks over all targets twice: for a few thousand, that is shorter than a launch.

    Args:
        target: `[p]` int64, contiguous.
        ignore_index: the id of targets that do not count.
    """
    label = torch.empty_like(target)
    skipped = torch.empty_like(target, dtype=torch.bool)
    share = torch.empty_like(target, dtype=torch.float32)
    _counted[(1,)](target, label, skipped, share, len(target), ignore_index, block=BLOCK)
    return label, skipped, share


@triton.jit
def _counted(target, label, skipped, share, n, ignore_index, block: tl.constexpr):
    first = n
    count = 0
    for start in range(0, n, block):
        place = start + tl.arange(0, block)
        y = tl.load(target + place, mask=place < n, other=0)
        counts = (y != ignore_index) & (place < n)
        first = tl.minimum(first, tl.min(tl.where(counts, place, n)))
        count += tl.sum(counts.to(tl.int32))
    instead = tl.load(target + first, mask=first < n, other=0)
    each = tl.div_rn(1.0, tl.maximum(count, 1).to(tl.float32))
    for start in range(0, n, block):
        place = start + tl.arange(0, block)
        y = tl.load(target + place, mask=place < n, other=0)
        counts = y != ignore_index
        tl.store(label + place, tl.where(counts, y, instead), mask=place < n)
        tl.store(skipped + place, y == ignore_index, mask=place < n)
        tl.store(share + place, tl.where(counts, each, 0.0), mask=place < n)
