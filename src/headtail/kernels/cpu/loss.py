"""The sampled losses on a CPU with their gradients: matrix products by torch, everything between
them by numba.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from headtail.errors import check_ids
from headtail.kernels.compiled import keep_compiled
from headtail.kernels.cpu.exponential import exp
from headtail.kernels.cpu.loss_rows import add_bags, add_positives, add_rows, dot, dots, gather
from headtail.kernels.gradient import CONTRASTIVE, LOGISTIC, SQUARED_HINGE, LossGradients

keep_compiled()

NOTHING = np.float32(-np.inf)
"""The log-weight of a draw that does not count."""
NO_BIAS = np.zeros(0, np.float32)
NO_LABEL = np.full(1, -1)
"""It equals no id."""
NONE_KNOWN = np.zeros((0, 0), np.bool_)


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
    scored = _scored(input, table, bias, positive, negatives)
    loss, grad_positive = np.empty((2, len(scored.f_y)), np.float32)
    total = np.empty((), np.float32)
    weights = *_offsets(a, b), *_collisions(label, ids, known), _scale(scale)
    _softmax(scored.f.numpy(), scored.f_y, *weights, loss, grad_positive, total)
    return _gradients(scored, loss, grad_positive, scored.f, total)


def sampled_decoupled(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor, a: Tensor | float, b: Tensor | float, known: Tensor | None,
    scale: Tensor | float, piece: int, margin: float,
) -> LossGradients:  # fmt: skip
    """φ(f_y) + Σ e^(a + b) ϕ(−f_y') of each example, and gradients of Σ scale · loss.

    Arguments as in `sampled_softmax`; `piece` is the code of the binary losses φ and ϕ, with the
    `margin` of the contrastive one.
    """
    scored = _scored(input, table, bias, positive, negatives)
    f = scored.f
    f_y = torch.from_numpy(scored.f_y)
    w = torch.empty_like(f)
    _log_weights(w.numpy(), *_offsets(a, b), *_collisions(label, ids, known))
    # Draws that do not count are masked, not multiplied by 0: their terms may be infinite.
    counts = w.exp_() > 0
    value, slope = _piece(piece, -f, margin, positive=False)
    positive_value, positive_slope = _piece(piece, f_y, margin, positive=True)
    loss = positive_value + torch.where(counts, w * value, 0.0).sum(1)
    scale = torch.from_numpy(_scale(scale)).expand_as(f_y)
    used = scale > 0
    grad_positive = torch.where(used, scale * positive_slope, 0.0)
    grad_scores = torch.where(counts & used[:, None], -scale[:, None] * w * slope, 0.0)
    return _gradients(scored, loss.numpy(), grad_positive.numpy(), grad_scores)


class _Scored(NamedTuple):
    """Scores, and what they are products of: as tensors for products, as arrays for kernels.

    Attributes:
        input: `[b, d]`.
        negatives: `[m]` or `[b, m]` rows of the table.
        rows: `[m, d]` the rows themselves, or None where each example has its own.
        entries: `[b + m]` the rows of positives and shared negatives.
        f: like `[b, m]`.
        f_y: `[b]`.
        arrays: inputs, table, and the rows of positives.
        has_bias: whether scores have biases.
    """

    input: Tensor
    negatives: Tensor
    rows: Tensor | None
    entries: np.ndarray
    f: Tensor
    f_y: np.ndarray
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    has_bias: bool


def _scored(input: Tensor, table: Tensor, bias: Tensor | None, *ids: Tensor) -> _Scored:
    """The scores of positives and negatives."""
    try:
        return _scores(input, table, bias, *ids)
    except IndexError:
        for name, each in zip(("target", "draw.ids"), ids, strict=True):
            check_ids(name, each, len(table))
        raise


def _scores(input: Tensor, table: Tensor, bias: Tensor | None, *ids: Tensor) -> _Scored:
    positive, negatives = ids
    input = input.detach()
    arrays = input.numpy(), table.detach().numpy(), positive.numpy()
    b, d = input.shape
    f_y = np.empty(b, np.float32)
    entries = NO_LABEL
    offset = None if bias is None else bias.detach().reshape(-1)
    biases = NO_BIAS if offset is None else offset.numpy()
    drawn = negatives.numpy()
    if negatives.dim() == 1:
        rows = torch.empty(len(drawn), d, dtype=torch.float32)
        entries = np.empty(b + len(drawn), np.int64)
        gather(*arrays, biases, f_y, drawn, rows.numpy(), entries)
        f = torch.mm(input, rows.T)
        if offset is not None:
            f.add_(offset[negatives])
    else:
        rows = None
        f = input.new_empty(negatives.shape)
        dot(*arrays, biases, f_y)
        dots(*arrays[:2], drawn, biases, f.numpy())
    return _Scored(input, negatives, rows, entries, f, f_y, arrays, bias is not None)


def _gradients(
    scored: _Scored,
    loss: np.ndarray,
    grad_positive: np.ndarray,
    grad_f: Tensor,
    total: np.ndarray | None = None,
) -> LossGradients:
    """From the gradients of scores to those of the inputs and rows that they are products of."""
    input = scored.input
    losses = torch.from_numpy(loss)
    in_all = None if total is None else torch.from_numpy(total)
    if scored.rows is None:
        _, table, positive = scored.arrays
        grad_input = torch.zeros_like(input)
        add_bags(grad_input.numpy(), table, scored.negatives.numpy(), grad_f.numpy())
        add_rows(grad_input.numpy(), table, positive, grad_positive)
        grad_scores = torch.cat([torch.from_numpy(grad_positive), grad_f.reshape(-1)])
        return LossGradients(losses, grad_input, grad_scores, None, in_all)
    b, d = input.shape
    grad_input = torch.mm(grad_f, scored.rows)
    grad_rows = torch.empty(len(scored.entries), d, dtype=torch.float32)
    torch.mm(grad_f.T, input, out=grad_rows[b:])
    add_positives(grad_input.numpy(), grad_rows.numpy(), *scored.arrays, grad_positive)
    grad_scores = None
    if scored.has_bias:
        grad_scores = torch.cat([torch.from_numpy(grad_positive), grad_f.sum(0)])
    entries = torch.from_numpy(scored.entries)
    return LossGradients(losses, grad_input, grad_scores, grad_rows, in_all, entries)


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


def _offsets(a: Tensor | float, b: Tensor | float) -> tuple[np.ndarray, np.ndarray]:
    """a as `[b]` or `[1]`, and b as `[b, m]`, `[1, m]` or `[1, 1]`."""
    return _array(a, 1), _array(b, 2)


def _array(values: Tensor | float, axes: int) -> np.ndarray:
    """Log-weights, also where all labels share a number."""
    if not isinstance(values, Tensor):
        return np.array(values, ndmin=axes)
    array = values.contiguous().numpy()
    return array if array.ndim == axes else array.reshape(1, -1)


def _scale(scale: Tensor | float) -> np.ndarray:
    """`[b]`, or `[1]` where all examples share a number."""
    if isinstance(scale, Tensor):
        return scale.contiguous().numpy()
    return np.array([scale], np.float32)


def _collisions(
    label: Tensor | None, ids: Tensor, known: Tensor | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, ids, known): a label of −1 equals no id, and a matrix without rows masks nothing."""
    labels = NO_LABEL if label is None else label.numpy()
    drawn = ids.numpy()
    drawn = drawn[None] if drawn.ndim == 1 else drawn
    return labels, drawn, NONE_KNOWN if known is None else known.numpy()


@njit(cache=True, fastmath={"reassoc"})
@no_type_check
def _sum(x):
    total = np.float32(0)
    for k in range(len(x)):
        total += x[k]
    return total


@njit(cache=True)
@no_type_check
def _largest(bits):
    """The largest of float32 numbers, or 0: as integers, numbers above 0 have the same order. A NaN
    shows in the sum that follows.
    """
    most = np.int32(0)
    for k in range(len(bits)):
        most = max(most, bits[k])
    return np.int32(most).view(np.float32)


@njit(cache=True)
@no_type_check
def _log_weights(out, a, b, label, ids, known):
    """out = a + b, −inf for draws that do not count: collisions and known positives."""
    out[:] = 0
    zero = np.float32(0)
    for i in range(out.shape[0]):
        _weigh(out[i], zero, a[i % len(a)], b[i % len(b)], label[i % len(label)], ids[i % len(ids)])
        _mask(out[i], known, i)


@njit(cache=True)
@no_type_check
def _weigh(f, f_y, a, b, label, ids):
    """f ← f − f_y + (a + b), −inf where an id is the label."""
    if len(b) == 1:
        w = np.float32(a + b[0])
        for j in range(len(f)):
            z = w + (f[j] - f_y)
            f[j] = NOTHING if ids[j] == label else z
    else:
        for j in range(len(f)):
            z = np.float32(a + b[j]) + (f[j] - f_y)
            f[j] = NOTHING if ids[j] == label else z


@njit(cache=True)
@no_type_check
def _mask(z, known, i):
    """z ← −inf where the i-th example has a known positive."""
    if len(known):
        for j in range(len(z)):
            if known[i, j]:
                z[j] = NOTHING


@njit(cache=True, fastmath={"contract"})
@no_type_check
def _exp(z, top):
    """z ← e^(z − top)."""
    for j in range(len(z)):
        z[j] = exp(z[j] - top)


@njit(cache=True)
@no_type_check
def _multiply(z, factor):
    for j in range(len(z)):
        z[j] *= factor


@njit(cache=True)
@no_type_check
def _softmax(f, f_y, a, b, label, ids, known, scale, loss, grad_positive, total):
    """The loss of each example, Σ scale · loss, and f ← scale · p. One row at a time, so that it
    stays in the nearest cache.
    """
    bits = f.view(np.int32)
    in_all = 0.0
    for i in range(f.shape[0]):
        z = f[i]
        _weigh(z, f_y[i], a[i % len(a)], b[i % len(b)], label[i % len(label)], ids[i % len(ids)])
        _mask(z, known, i)
        top = _largest(bits[i])  # of the positive, too, which has z = 0
        _exp(z, top)
        rest = _sum(z)
        terms = rest + np.exp(-top)
        loss[i] = top + np.log(terms)
        factor = scale[i % len(scale)]
        if factor == 0:  # a choice, not a product: a term may be NaN
            z[:] = 0
            grad_positive[i] = 0
        else:
            share = factor / terms
            _multiply(z, share)
            grad_positive[i] = -rest * share
            in_all += np.float64(factor) * loss[i]
    total[()] = in_all
