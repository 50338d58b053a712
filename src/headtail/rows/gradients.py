"""Row gradients in other forms: as torch's sparse and dense tensors, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from headtail.kernels.gradient import RowGradient


def as_sparse(table: Tensor, gradient: RowGradient) -> Tensor:
    """A gradient as torch knows it: rows, repeated, and the value of each entry."""
    # there it may be padded
    if gradient.points is not None and gradient.coefs is not None and table.device.type == "cuda":
        there = gradient.rows >= 0
        gradient = RowGradient(
            gradient.rows[there], gradient.values, gradient.points[there], gradient.coefs[there]
        )
    return torch.sparse_coo_tensor(
        gradient.rows[None], values_of(gradient), table.shape, check_invariants=False
    )


def as_dense(table: Tensor, gradient: RowGradient) -> Tensor:
    """A gradient with every row, on a GPU: a step of −1 from nothing."""
    from headtail.kernels.triton import rows as cuda_rows

    dense = torch.zeros_like(table, dtype=torch.float32)
    cuda_rows.sgd_rows(dense, gradient, -1.0)
    return dense.to(table.dtype)


def values_of(gradient: RowGradient) -> Tensor:
    """`[n, d]` what each entry adds to its row."""
    values = gradient.values if gradient.points is None else gradient.values[gradient.points]
    return values if gradient.coefs is None else values * gradient.coefs[:, None]


def as_rows(grad: Tensor | RowGradient) -> RowGradient | None:
    """A sparse gradient as entries; None for a dense one."""
    if isinstance(grad, RowGradient):
        return grad
    return (
        RowGradient(grad._indices()[0], grad._values())
        if grad.is_sparse and grad.sparse_dim() == 1
        else None
    )


def every_row(grad: Tensor) -> RowGradient:
    """A dense gradient as entries, one a row."""
    table = as_table(grad)
    return RowGradient(torch.arange(len(table), device=grad.device), table)


def as_table(tensor: Tensor) -> Tensor:
    """A vector is a table of one row."""
    return tensor[None] if tensor.dim() == 1 else tensor


def summed(table: Tensor, gradient: RowGradient) -> tuple[Tensor, Tensor]:
    """The different rows, and the sum of the entries of each."""
    sums = as_sparse(table, gradient).coalesce()
    return sums.indices()[0], sums.values()
