"""The sampled losses on the CPU with their gradients: matrix products by torch, all between them by
numba.
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
    label: Tensor | None, ids: Tensor, a: Tensor | float, b: Tensor | float, known: Tensor | None, scale: Tensor | float,
) -> LossGradients:  # fmt: skip
    """log[1 + Σ e^z], z = f_y' − f_y + a + b, of each example, with the gradients of Σ scale ·
    loss; see `LossGradients`.
    """
    f_y, f, rows = _scores(input, table, bias, positive, negatives)
    top = torch.empty_like(f_y)
    loss = torch.empty_like(f_y)
    of_positive = torch.empty_like(f_y)
    _shift(
        f.numpy(),
        f_y.numpy(),
        *_offsets(a, b, positive, negatives),
        *_collisions(label, ids, known),
        top.numpy(),
    )
    _share(
        f.exp_().numpy(),
        top.numpy(),
        _scale(scale, f_y).contiguous().numpy(),
        loss.numpy(),
        of_positive.numpy(),
    )
    return _gradients(input, table, positive, negatives, rows, loss, of_positive, f)


def sampled_decoupled(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor, a: Tensor | float, b: Tensor | float, known: Tensor | None, scale: Tensor | float,
    piece: int, margin: float,
) -> LossGradients:  # fmt: skip
    """φ(f_y) + Σ e^(a + b) ϕ(−f_y') of each example, with the gradients of Σ scale · loss; see
    `LossGradients`.
    """
    f_y, f, rows = _scores(input, table, bias, positive, negatives)
    w = torch.empty_like(f)
    _log_weights(w.numpy(), *_offsets(a, b, positive, negatives), *_collisions(label, ids, known))
    counts = w.exp_() > 0  # what does not count is selected away: its term may be infinite
    value, slope = _piece(piece, -f, margin, positive=False)
    of_value, of_slope = _piece(piece, f_y, margin, positive=True)
    loss = of_value + torch.where(counts, w * value, 0.0).sum(1)
    scale = _scale(scale, f_y)
    used = scale > 0
    of_positive = torch.where(used, scale * of_slope, 0.0)
    of_scores = torch.where(counts & used[:, None], -scale[:, None] * w * slope, 0.0)
    return _gradients(input, table, positive, negatives, rows, loss, of_positive, of_scores)


def _scores(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """f_y, f and, where the negatives are shared, their rows."""
    f_y = torch.empty(len(input))
    arrays = input.detach().numpy(), table.detach().numpy()
    offset = np.zeros(0, np.float32) if bias is None else bias.detach().reshape(-1).numpy()
    _dot(*arrays, offset, positive.numpy(), f_y.numpy())
    if negatives.dim() == 1:
        rows = table.detach().index_select(0, negatives)
        f = input.detach() @ rows.T
        return f_y, f if bias is None else f.add_(bias.detach().reshape(-1)[negatives]), rows
    f = torch.empty(negatives.shape)
    _dots(*arrays, offset, negatives.numpy(), f.numpy())
    return f_y, f, None


def _gradients(
    input: Tensor,
    table: Tensor,
    positive: Tensor,
    negatives: Tensor,
    rows: Tensor | None,
    loss: Tensor,
    of_positive: Tensor,
    of_f: Tensor,
) -> LossGradients:
    """From the gradients of the scores to those of what they are products of."""
    input = input.detach()
    table = table.detach()
    if rows is None:
        of_input = torch.zeros_like(input)
        _add_bags(of_input.numpy(), table.numpy(), negatives.numpy(), of_f.numpy())
        of_rows = None
        of_scores = torch.cat([of_positive, of_f.reshape(-1)])
    else:
        of_input = of_f @ rows
        of_scores = torch.cat([of_positive, of_f.sum(0)])
        of_rows = torch.empty(len(of_scores), input.shape[1])
        torch.mul(input, of_positive[:, None], out=of_rows[: len(input)])
        torch.mm(of_f.T, input, out=of_rows[len(input) :])
    _add_rows(of_input.numpy(), table.numpy(), positive.numpy(), of_positive.numpy())
    return LossGradients(loss, of_input, of_scores, of_rows)


def _piece(piece: int, z: Tensor, margin: float, *, positive: bool) -> tuple[Tensor, Tensor]:
    """φ(z) and φ'(z), or ϕ(z) and ϕ'(z)."""
    if piece == LOGISTIC:
        return torch.nn.functional.softplus(-z), -torch.sigmoid(-z)
    if piece == CONTRASTIVE:
        short = 1 - z if positive else (-z - margin).clamp_(min=0.0)
        return short * short / 2, -short
    short = (1 - z).clamp_(min=0.0)
    return (short * short, -2 * short) if piece == SQUARED_HINGE else (short, -(short > 0).float())


def _offsets(
    a: Tensor | float, b: Tensor | float, positive: Tensor, negatives: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    a = _per_label(a, positive)
    b = _per_label(b, negatives)
    return a.contiguous().numpy(), (b if b.dim() == 2 else b[None]).contiguous().numpy()


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
    """Labels of −1 meet no id; a matrix without rows knows nothing."""
    labels = np.full(1, -1) if label is None else label.numpy()
    return (
        labels,
        (ids if ids.dim() == 2 else ids[None]).numpy(),
        np.zeros((0, 0), np.bool_) if known is None else known.numpy(),
    )


# a sum of products in any order can use all lanes
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


@njit(cache=True, fastmath={"nnan", "nsz"})  # a largest number that is none shows in the sum
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
    """out = a + b, −inf for draws that do not count: those that hit the label, and known positives."""
    for i in range(out.shape[0]):
        y = label[i % len(label)]
        of_b = b[i % len(b)]
        of_ids = ids[i % len(ids)]
        a_i = a[i]
        for j in range(out.shape[1]):
            out[i, j] = NOTHING if of_ids[j] == y else np.float32(a_i + of_b[j])
        if len(known):
            for j in range(out.shape[1]):
                if known[i, j]:
                    out[i, j] = NOTHING


@njit(cache=True)
@no_type_check
def _shift(f, f_y, a, b, label, ids, known, top):
    """f ← z − top, where top is the largest z of a row or 0, the positive's own."""
    z = np.empty_like(f[0])
    for i in range(f.shape[0]):
        _log_weights(
            z[None],
            a[i : i + 1],
            b[i % len(b) :],
            label[i % len(label) :],
            ids[i % len(ids) :],
            known[i : i + 1],
        )
        for j in range(len(z)):
            z[j] += f[i, j] - f_y[i]
        most = _largest(z)
        for j in range(len(z)):
            f[i, j] = z[j] - most
        top[i] = most


@njit(cache=True)
@no_type_check
def _share(terms, top, scale, loss, of_positive):
    """With terms e^(z − top): the loss, and terms ← scale · p."""
    for i in range(terms.shape[0]):
        rest = _sum(terms[i])
        total = rest + np.exp(-top[i])
        loss[i] = top[i] + np.log(total)
        share = scale[i] / total if scale[i] != 0 else np.float32(0)
        for j in range(terms.shape[1]):
            # selected: the term may be no number
            terms[i, j] = terms[i, j] * share if scale[i] != 0 else np.float32(0)
        of_positive[i] = -rest * share if scale[i] != 0 else np.float32(0)
