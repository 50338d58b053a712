"""Row gradients in other forms: as torch's sparse and dense tensors, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headtail.kernels.dispatch import row_kernels
from headtail.kernels.gradient import RowGradient
from headtail.rows.link import link_of, linked, taker_of


def for_autograd(table: Tensor, gradient: RowGradient, node: Any) -> Tensor | None:
    """What a backward function returns as the gradient of a leaf table.

    An optimiser that updates tables at once has applied the entries: nothing is left. For an
    optimiser that takes entries they wait until its next step, and `.grad` becomes a sparse tensor
    without rows: setting it to None drops them. Otherwise they are in `.grad`.

    Args:
        table: `[T, d]`.
        gradient: its entries.
        node: the node of the graph that adds to the table's `.grad`.
    """
    taker = taker_of(table)
    if taker is None or not is_accumulated(node):
        return as_sparse(table, gradient)
    if taker.at_once:
        taker.take(table, gradient)
        return None
    if gradient.coefs is not None:
        # Values are then hidden states, or another gradient, which may change before the step.
        gradient = gradient._replace(values=gradient.values.clone())
    linked(table).hold(table, gradient)
    none = RowGradient(gradient.rows[:0], table.detach().new_empty(0, table.shape[1]))
    return as_sparse(table, none)


def is_accumulated(node: Any) -> bool:
    """Whether the running pass adds to the `.grad` behind a node.

    It does not under `torch.autograd.grad`, and under `backward(inputs=…)` only for these inputs.
    """
    try:
        return node is not None and torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised where `torch.autograd.grad` asks for this very gradient
        return False


def whole_gradient(table: Tensor) -> Tensor | RowGradient | None:
    """The gradient of a parameter: its `.grad` and the entries that wait, which no longer do."""
    link = link_of(table)
    grad = table.grad
    if link is None or not link.entries:
        return grad
    entries = link.entries
    link.entries = []
    if grad is None:  # set to None since backward, by a `zero_grad` that knows nothing of entries
        return None
    rest = as_rows(grad)
    if rest is None:
        return grad + as_sparse(table, merged(entries))
    return merged([*entries, rest] if len(rest.rows) else entries)


def merged(gradients: list[RowGradient]) -> RowGradient:
    """All entries of several gradients of one table."""
    if len(gradients) == 1:
        return gradients[0]
    points = []
    start = 0
    for gradient in gradients:
        own = gradient.points
        own = torch.arange(len(gradient.rows), device=gradient.rows.device) if own is None else own
        points.append(own + start)
        start += len(gradient.values)
    coefs = None
    if any(gradient.coefs is not None for gradient in gradients):
        ones = (g.values.new_ones(len(g.rows)) if g.coefs is None else g.coefs for g in gradients)
        coefs = torch.cat(list(ones))
    rows = torch.cat([gradient.rows for gradient in gradients])
    return RowGradient(rows, torch.cat([g.values for g in gradients]), torch.cat(points), coefs)


def as_sparse(table: Tensor, gradient: RowGradient) -> Tensor:
    """A gradient as torch knows it: rows, repeated, and the value of each entry."""
    # there it may be padded
    if gradient.points is not None and gradient.coefs is not None and table.device.type == "cuda":
        there = gradient.rows >= 0
        gradient = RowGradient(
            gradient.rows[there], gradient.values, gradient.points[there], gradient.coefs[there]
        )
    return sparse_rows(gradient.rows, values_of(gradient), table.shape)


def sparse_rows(rows: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A sparse tensor of rows that may repeat, over the given tensors themselves.

    This is the operator that `nn.Embedding(sparse=True)` makes its gradient with:
    `torch.sparse_coo_tensor` of torch 2.11 warns of checks even where they are turned off.
    """
    return torch.ops.aten._sparse_coo_tensor_unsafe(rows[None], values, list(shape))


def as_dense(table: Tensor, gradient: RowGradient) -> Tensor:
    """A gradient with every row. A kernel computes it as a step of −1 from zeros."""
    dense = torch.zeros_like(table, dtype=torch.float32)
    kernels = row_kernels(dense, dense.numel())
    if kernels is None:
        return as_sparse(table, gradient).to_dense().to(table.dtype)
    kernels.sgd_rows(dense, gradient, -1.0)
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
