"""The sampled losses on a CPU with their gradients: matrix products by torch, everything between
them by numba.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from headtail.kernels.compiled import keep_compiled
from headtail.kernels.gradient import CONTRASTIVE, LOGISTIC, SQUARED_HINGE, LossGradients

keep_compiled()

NOTHING = np.float32(-np.inf)
"""The log-weight of a draw that does not count."""


def sampled_softmax(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor, a: Tensor | float, b: Tensor | float, known: Tensor | None,
    scale: Tensor | float,
) -> LossGradients:  # fmt: skip
    """log[1 + Σ e^z], z = f_y' − f_y + a + b, of each example, and gradients of Σ scale · loss.

    Args:
        input: `[b, d]`.
        table: `[T, d]`.
        bias: `[T]` or `[T, 1]`, or None.
        positive: `[b]` the row of each example's positive.
        negatives: `[m]` or `[b, m]` rows.
        label: `[b]` and
        ids: like `negatives`: where they agree, a draw does not count. None: no draw collides.
        a: `[b]` and
        b: like `negatives`: the log-weights; each may be one number for all.
        known: `[b, m]` further draws that do not count, or None.
        scale: `[b]` factor of each loss in the total, or one number; where it is 0, all gradients
            are 0.
    """
    f_y, f, rows = _scores(input, table, bias, positive, negatives)
    top = torch.empty_like(f_y)
    loss = torch.empty_like(f_y)
    grad_positive = torch.empty_like(f_y)
    weights = *_offsets(a, b, positive, negatives), *_collisions(label, ids, known)
    _shift(f.numpy(), f_y.numpy(), *weights, top.numpy())
    factor = _scale(scale, f_y).contiguous()
    _share(f.exp_().numpy(), top.numpy(), factor.numpy(), loss.numpy(), grad_positive.numpy())
    return _gradients(input, table, positive, negatives, rows, loss, grad_positive, f)


def sampled_decoupled(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor, a: Tensor | float, b: Tensor | float, known: Tensor | None,
    scale: Tensor | float, piece: int, margin: float,
) -> LossGradients:  # fmt: skip
    """φ(f_y) + Σ e^(a + b) ϕ(−f_y') of each example, and gradients of Σ scale · loss.

    Arguments as in `sampled_softmax`; `piece` is the code of the binary losses φ and ϕ, with the
    `margin` of the contrastive one.
    """
    f_y, f, rows = _scores(input, table, bias, positive, negatives)
    w = torch.empty_like(f)
    _log_weights(w.numpy(), *_offsets(a, b, positive, negatives), *_collisions(label, ids, known))
    # Draws that do not count are masked, not multiplied by 0: their terms may be infinite.
    counts = w.exp_() > 0
    value, slope = _piece(piece, -f, margin, positive=False)
    positive_value, positive_slope = _piece(piece, f_y, margin, positive=True)
    loss = positive_value + torch.where(counts, w * value, 0.0).sum(1)
    scale = _scale(scale, f_y)
    used = scale > 0
    grad_positive = torch.where(used, scale * positive_slope, 0.0)
    grad_scores = torch.where(counts & used[:, None], -scale[:, None] * w * slope, 0.0)
    return _gradients(input, table, positive, negatives, rows, loss, grad_positive, grad_scores)


def _scores(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """f_y, f and, where the negatives are shared, their rows."""
    f_y = torch.empty(len(input))
    arrays = input.detach().numpy(), table.detach().numpy()
    offset = torch.zeros(0) if bias is None else bias.detach().reshape(-1)
    _dot(*arrays, offset.numpy(), positive.numpy(), f_y.numpy())
    if negatives.dim() == 1:
        rows = table.detach().index_select(0, negatives)
        f = input.detach() @ rows.T
        if bias is not None:
            f.add_(offset[negatives])
        return f_y, f, rows
    f = torch.empty(negatives.shape)
    _dots(*arrays, offset.numpy(), negatives.numpy(), f.numpy())
    return f_y, f, None


def _gradients(
    input: Tensor,
    table: Tensor,
    positive: Tensor,
    negatives: Tensor,
    rows: Tensor | None,
    loss: Tensor,
    grad_positive: Tensor,
    grad_f: Tensor,
) -> LossGradients:
    """From the gradients of scores to those of the inputs and rows that they are products of."""
    input = input.detach()
    table = table.detach()
    if rows is None:
        grad_input = torch.zeros_like(input)
        _add_bags(grad_input.numpy(), table.numpy(), negatives.numpy(), grad_f.numpy())
        grad_rows = None
        grad_scores = torch.cat([grad_positive, grad_f.reshape(-1)])
    else:
        grad_input = grad_f @ rows
        grad_scores = torch.cat([grad_positive, grad_f.sum(0)])
        grad_rows = torch.empty(len(grad_scores), input.shape[1])
        torch.mul(input, grad_positive[:, None], out=grad_rows[: len(input)])
        torch.mm(grad_f.T, input, out=grad_rows[len(input) :])
    _add_rows(grad_input.numpy(), table.numpy(), positive.numpy(), grad_positive.numpy())
    return LossGradients(loss, grad_input, grad_scores, grad_rows)


def _piece(piece: int, z: Tensor, margin: float, *, positive: bool) -> tuple[Tensor, Tensor]:
    """φ(z) and φ'(z), or ϕ(z) and ϕ'(z)."""
    if piece == LOGISTIC:
        return torch.nn.functional.softplus(-z), -torch.sigmoid(-z)
    if piece == CONTRASTIVE:
        short = 1 - z if positive else (-z - margin).clamp_(min=0.0)
        return short * short / 2, -short
    short = (1 - z).clamp_(min=0.0)
    if piece == SQUARED_HINGE:
        return short * short, -2 * short
    return short, -(short > 0).float()


def _offsets(
    a: Tensor | float, b: Tensor | float, positive: Tensor, negatives: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """`[b]` a, and b as `[b, m]` or `[1, m]`."""
    a = _per_label(a, positive)
    b = _per_label(b, negatives)
    return a.contiguous().numpy(), torch.atleast_2d(b).contiguous().numpy()


def _per_label(values: Tensor | float, ids: Tensor) -> Tensor:
    """Log-weights as a tensor, also where all labels share a number."""
    if isinstance(values, Tensor):
        return values
    return torch.full(ids.shape, values, dtype=torch.float64)


def _scale(scale: Tensor | float, f_y: Tensor) -> Tensor:
    return scale if isinstance(scale, Tensor) else torch.full_like(f_y, scale)


def _collisions(
    label: Tensor | None, ids: Tensor, known: Tensor | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, ids, known): a label of −1 equals no id, and a matrix without rows masks nothing."""
    labels = np.full(1, -1) if label is None else label.numpy()
    masked = np.zeros((0, 0), np.bool_) if known is None else known.numpy()
    return labels, torch.atleast_2d(ids).numpy(), masked


# a sum of products in any order can use all vector lanes
@njit(cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _product(x, y):
    total = np.float32(0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@njit(cache=True, fastmath={"reassoc"})
@no_type_check
def _sum(x):
    total = np.float32(0)
    for k in range(len(x)):
        total += x[k]
    return total


@njit(cache=True, fastmath={"nnan", "nsz"})  # a NaN shows in the sum that follows
@no_type_check
def _largest(x):
    """The largest, or 0."""
    most = np.float32(0)
    for k in range(len(x)):
        most = x[k] if x[k] > most else most
    return most


@njit(cache=True)
@no_type_check
def _dot(input, table, bias, rows, out):
    """out[i] = input[i] · table[rows[i]] + bias."""
    for i in range(len(rows)):
        out[i] = _product(input[i], table[rows[i]])
        if len(bias):
            out[i] += bias[rows[i]]


@njit(cache=True)
@no_type_check
def _dots(input, table, bias, rows, out):
    """out[i, j] = input[i] · table[rows[i, j]] + bias."""
    for i in range(len(rows)):
        _dot_one(input[i], table, bias, rows[i], out[i])


@njit(cache=True)
@no_type_check
def _dot_one(x, table, bias, rows, out):
    for j in range(len(rows)):
        out[j] = _product(x, table[rows[j]])
        if len(bias):
            out[j] += bias[rows[j]]


@njit(cache=True)
@no_type_check
def _add_rows(out, table, rows, coefs):
    """out[i] += coefs[i] · table[rows[i]]."""
    for i in range(len(rows)):
        source = table[rows[i]]
        coef = coefs[i]
        for k in range(out.shape[1]):
            out[i, k] += coef * source[k]


@njit(cache=True)
@no_type_check
def _add_bags(out, table, rows, coefs):
    """out[i] += Σ_j coefs[i, j] · table[rows[i, j]]."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            source = table[rows[i, j]]
            coef = coefs[i, j]
            for k in range(out.shape[1]):
                out[i, k] += coef * source[k]


@njit(cache=True)
@no_type_check
def _log_weights(out, a, b, label, ids, known):
    """out = a + b, −inf for draws that do not count: collisions and known positives."""
    for i in range(out.shape[0]):
        y = label[i % len(label)]
        b_row = b[i % len(b)]
        ids_row = ids[i % len(ids)]
        a_i = a[i]
        for j in range(out.shape[1]):
            out[i, j] = NOTHING if ids_row[j] == y else np.float32(a_i + b_row[j])
        if len(known):
            for j in range(out.shape[1]):
                if known[i, j]:
                    out[i, j] = NOTHING


@njit(cache=True)
@no_type_check
def _shift(f, f_y, a, b, label, ids, known, top):
    """f ← z − top, where top is the larger of 0, the positive's z, and the largest z of a row."""
    z = np.empty_like(f[0])
    for i in range(f.shape[0]):
        labels = label[i % len(label) :]
        rest = ids[i % len(ids) :]
        _log_weights(z[None], a[i : i + 1], b[i % len(b) :], labels, rest, known[i : i + 1])
        for j in range(len(z)):
            z[j] += f[i, j] - f_y[i]
        most = _largest(z)
        for j in range(len(z)):
            f[i, j] = z[j] - most
        top[i] = most


@njit(cache=True)
@no_type_check
def _share(terms, top, scale, loss, grad_positive):
    """With terms e^(z − top): the loss, and terms ← scale · p."""
    for i in range(terms.shape[0]):
        rest = _sum(terms[i])
        total = rest + np.exp(-top[i])
        loss[i] = top[i] + np.log(total)
        share = scale[i] / total if scale[i] != 0 else np.float32(0)
        for j in range(terms.shape[1]):
            # a choice, not a product: the term may be NaN
            terms[i, j] = terms[i, j] * share if scale[i] != 0 else np.float32(0)
        grad_positive[i] = -rest * share if scale[i] != 0 else np.float32(0)
