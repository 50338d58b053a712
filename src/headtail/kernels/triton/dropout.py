"""A bias and a dropout in one pass on CUDA, by Triton."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import Drop

ROWS = 32
"""Rows and"""
COLUMNS = 128
"""columns per program."""


def drop_for(x: Tensor, share: float) -> Drop:
    """Which numbers of x to drop, as a seed from which each is computed, so that nothing of the
    size of x is held.
    """
    seed = torch.empty((), dtype=torch.int64, device=x.device).random_()
    return Drop(seed, share, 1 / (1 - share))


def forward(x: Tensor, bias: Tensor, drop: Drop) -> None:
    """x ← (x + bias) · scale, or 0 where it is dropped; in place."""
    n, d = x.shape
    grid = triton.cdiv(n, ROWS), triton.cdiv(d, COLUMNS)
    _forward[grid](x, bias, *drop, n, d, rows=ROWS, columns=COLUMNS)


def backward(grad: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
    """The gradient of x, and `[k, d]` parts of the sum over rows that is the bias's."""
    n, d = grad.shape
    grid = triton.cdiv(n, ROWS), triton.cdiv(d, COLUMNS)
    grad_x = torch.empty_like(grad)
    parts = grad.new_empty(grid[0], d)
    _backward[grid](grad, grad_x, parts, *drop, n, d, rows=ROWS, columns=COLUMNS)
    return grad_x, parts


@triton.jit
def _tile(n, d, rows: tl.constexpr, columns: tl.constexpr):
    i = tl.program_id(0) * rows + tl.arange(0, rows)
    k = tl.program_id(1) * columns + tl.arange(0, columns)
    return i.to(tl.int64)[:, None] * d + k[None, :], (i < n)[:, None] & (k < d)[None, :], k


@triton.jit
def _kept(x, noise, share, scale, place):
    return tl.where(tl.rand(tl.load(noise), place) >= share, x * scale, 0.0)


@triton.jit
def _forward(x, bias, noise, share, scale, n, d, rows: tl.constexpr, columns: tl.constexpr):
    place, inside, k = _tile(n, d, rows, columns)
    shifted = tl.load(x + place, mask=inside) + tl.load(bias + k, mask=k < d)[None, :]
    tl.store(x + place, _kept(shifted, noise, share, scale, place), mask=inside)


@triton.jit
def _backward(
    grad, grad_x, parts, noise, share, scale, n, d, rows: tl.constexpr, columns: tl.constexpr
):
    place, inside, k = _tile(n, d, rows, columns)
    g = _kept(tl.load(grad + place, mask=inside, other=0.0), noise, share, scale, place)
    tl.store(grad_x + place, g, mask=inside)
    tl.store(parts + tl.program_id(0) * d + k, tl.sum(tl.where(inside, g, 0.0), 0), mask=k < d)
