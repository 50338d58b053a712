"""Optimiser updates on CUDA by Triton: one pass over what five PyTorch operations would read and write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _adagrad(p, total, grad, lr, eps, count, block: tl.constexpr):  # pyright: ignore[reportUnknownParameterType]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)  # int64: 100M rows of 512 pass 2^31
    inside = place < count
    g = tl.load(grad + place, mask=inside, other=0.0)
    now = tl.load(total + place, mask=inside, other=0.0) + g * g
    tl.store(total + place, now, mask=inside)
    # A number that never had a gradient stays where it is: 0 / (0 + eps) is 0 for any eps above 0.
    step = tl.load(lr) * g / (tl.sqrt(now) + eps)
    tl.store(p + place, tl.load(p + place, mask=inside) - step, mask=inside)


def adagrad_(p: Tensor, total: Tensor, grad: Tensor, lr: Tensor | float, eps: float) -> None:
    """G ← G + g²; θ ← θ − η·g/(√G + ε), in place, for contiguous float32 tensors of one shape."""
    rate = lr if isinstance(lr, Tensor) else torch.full((), lr, device=p.device)
    _adagrad[(triton.cdiv(p.numel(), BLOCK),)](p, total, grad, rate, eps, p.numel(), block=BLOCK)  # pyright: ignore


def fits(*tensors: Tensor) -> bool:
    """Whether the kernel takes these."""
    return all(t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
