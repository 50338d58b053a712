"""Optimiser updates of table rows on the CPU, by numba: one pass, in place, over the rows that are touched."""

from __future__ import annotations

from typing import no_type_check  # numba takes bare functions, not those that `pytest --shapes` has wrapped

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads
from torch import Tensor

from headtail.kernels.compiled import keep_compiled

keep_compiled()


def fits(p: Tensor, total: Tensor, grad: Tensor) -> bool:
    """Whether the kernel takes these."""
    return all(t.dtype == torch.float32 and t.is_contiguous() and t.dim() == 2 for t in (p, total, grad))


def adagrad_rows(p: Tensor, total: Tensor, rows: Tensor, grad: Tensor, lr: float, eps: float) -> None:
    """For each row r, different ones: G_r ← G_r + g²; θ_r ← θ_r − η·g/(√G_r + ε)."""
    arrays = p.detach().numpy(), total.numpy(), rows.numpy(), grad.numpy(), np.float32(lr), np.float32(eps)
    threads = torch.get_num_threads()
    if threads == 1:
        _one_thread(*arrays)
    else:
        set_num_threads(min(threads, config.NUMBA_NUM_THREADS))  # pyright: ignore[reportAttributeAccessIssue]
        _many_threads(*arrays)


@njit(cache=True, error_model="numpy")  # numpy's: dividing by zero is no branch, so the loop is vectorised
@no_type_check
def _update(p, total, grad, lr, eps):
    for k in range(len(p)):
        g = grad[k]
        now = total[k] + g * g
        total[k] = now
        p[k] -= lr * g / (np.sqrt(now) + eps)


@njit(cache=True)
@no_type_check
def _one_thread(p, total, rows, grad, lr, eps):
    for i in range(len(rows)):
        _update(p[rows[i]], total[rows[i]], grad[i], lr, eps)


@njit(parallel=True, cache=True)
@no_type_check
def _many_threads(p, total, rows, grad, lr, eps):
    for i in prange(len(rows)):
        _update(p[rows[i]], total[rows[i]], grad[i], lr, eps)
