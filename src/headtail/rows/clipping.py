"""Clipping of gradients, row-sparse ones among them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from headtail.errors import HeadtailError, check_number
from headtail.kernels.gradient import RowGradient
from headtail.rows.gradients import as_sparse, whole_gradient
from headtail.rows.link import taker_of


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` for row-sparse gradients too.

    Entries of a row are summed before the norm is taken.

    Args:
        parameters: dense and sparse ones together.
        max_norm: the largest norm that is left alone.

    Returns:
        The norm before clipping.

    >>> table = torch.nn.Parameter(torch.zeros(5, 1))
    >>> torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    >>> clip_grad_norm_([table], max_norm=1.0)
    tensor(2.)
    >>> table.grad.to_dense().norm()
    tensor(1.0000)
    """
    if max_norm != math.inf:
        check_number("max_norm", max_norm, low=0)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for p in parameters:
        taker = taker_of(p)
        if taker is not None and taker.at_once:
            raise HeadtailError(
                "A table that is updated at once, inside backward, has no gradient left to clip. "
                "Write `inside_backward()` without `at_once=True`."
            )
    grads = [_summed_grad(p) for p in parameters]
    values = [grad.values() if grad.is_sparse else grad for grad in grads if grad is not None]
    if not values:
        return torch.tensor(0.0)
    exact = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
    norms = [torch.linalg.vector_norm(v, dtype=exact).to(values[0].device) for v in values]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # torch's own guard against a zero norm
    for v in values:
        v.mul_(scale.to(v.device, v.dtype))
    return norm


def _summed_grad(p: Tensor) -> Tensor | None:
    """The `.grad` of a parameter, after waiting entries were added and entries of a row summed."""
    grad = whole_gradient(p)
    if isinstance(grad, RowGradient):
        grad = as_sparse(p, grad)
    if grad is not None and grad.is_sparse:
        grad = grad.coalesce()
    p.grad = grad
    return grad
