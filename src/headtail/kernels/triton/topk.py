"""The exact best labels on CUDA: candidates by fast TF32 scores, their true scores in float32, and
a proof that nothing was missed.

A TF32 product of x and w differs from the true score by at most ‖x‖ · slack(w). The labels with the
largest *upper bounds* are the candidates: all other labels score at most the smallest of their
bounds. A point is certain if its k-th best candidate reaches that bound; the others, rare unless
scores tie by the hundred, are scored again in float32.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
"""Labels per tile; only the largest bound of a tile is compared first."""
LABELS = 8
"""Labels that a program multiplies at a time,"""
COLUMNS = 512
"""and columns."""
TILES = 16
"""Tiles per program that computes maxima,"""
POINTS = 4
"""and points."""
SCORES_AT_ONCE = 2**29
"""Scores that are held at a time: 2 GiB."""


@torch.no_grad()
def topk(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    k: int,
    excluded: tuple[Tensor, Tensor] | None = None,
    at_once: int = SCORES_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """The k largest of `hidden @ table.T + bias + shift` per row, to float32 accuracy; ties are
    broken in any way.

    Args:
        hidden: `[n, d]` float32.
        table: `[L, d]` float32, with L some thousands or more.
        bias: `[L]`, and
        shift: `[L]`, for instance of a post-hoc correction; None for 0.
        k: at most L.
        excluded: `[p]` rows of `hidden` and `[p]` labels that must not be answered there, or None.
        at_once: scores that are held at a time.

    Returns:
        `[n, k]` scores, descending, and `[n, k]` int64 labels; where none remain, the score is −∞
        and the label any. A score that is NaN comes first.
    """
    base = table.new_zeros(len(table))
    for term in (bias, shift):
        base = base if term is None else base + term.reshape(-1)
    values, indices, certain = search(
        hidden.contiguous(), table.contiguous(), base, k, excluded, at_once
    )
    left = (~certain).nonzero()[:, 0]
    rows = max(1, at_once // len(table))
    for part in left.split(rows):
        with _float32_product("ieee"):
            scores = (hidden[part] @ table.T).add_(base)
        _rule_out(scores, _within(excluded, part))
        values[part], indices[part] = scores.topk(k)
    return values, indices


def search(
    hidden: Tensor,
    table: Tensor,
    base: Tensor,
    k: int,
    excluded: tuple[Tensor, Tensor] | None = None,
    at_once: int = SCORES_AT_ONCE,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `topk`, with `[n]` whether each row is certain: the others may miss a label."""
    n = len(hidden)
    num_labels, d = table.shape
    padded = triton.cdiv(num_labels, TILE) * TILE
    short = table.new_zeros(padded, d)
    short[:num_labels] = _rounded(table)
    base = torch.nn.functional.pad(base, (0, padded - num_labels), value=-torch.inf)
    length, lost = _lengths(table, short[:num_labels])
    # The error of rounding w and of adding up d products, per unit of ‖x‖; that of rounding x is
    # added for each batch.
    errors = torch.stack([length, lost + length * d * 2.0**-22])
    errors = torch.nn.functional.pad(errors, (0, padded - num_labels))
    values = hidden.new_empty(n, k)
    indices = torch.empty(n, k, dtype=torch.int64, device=hidden.device)
    certain = torch.empty(n, dtype=torch.bool, device=hidden.device)
    size = max(8, at_once // padded // 128 * 128)
    count = min(2 * k + 28, num_labels)
    scores = hidden.new_empty(min(size, n), padded)
    for start in range(0, n, size):
        rows = slice(start, start + size)
        x = hidden[rows]
        held = scores[: len(x)]
        ruled_out = _within(excluded, torch.arange(start, start + len(x), device=x.device))
        labels, bound = candidates(x, short, base, errors, num_labels, count, held, ruled_out)
        best, place = _score(x, table, base, labels).topk(k)
        values[rows] = best
        indices[rows] = labels.gather(1, place)
        # labels ruled out by −∞ cannot be distinguished from padding
        certain[rows] = (best[:, -1] >= bound) & (bound > -torch.inf)
    return values, indices, certain


def candidates(
    x: Tensor,
    short: Tensor,
    base: Tensor,
    errors: Tensor,
    num_labels: int,
    count: int,
    scores: Tensor,
    ruled_out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """`[b, count]` the labels with the largest upper bounds on their scores, and `[b]` the smallest
    of these bounds: −∞ where fewer than `count` labels are not ruled out.
    """
    rounded = _rounded(x)
    length, lost = _lengths(x, rounded)
    share = (lost / length.clamp(min=torch.finfo(x.dtype).tiny)).amax()
    slack = 1.001 * (share * errors[0] + errors[1])  # 0.001 because lengths are rounded too
    with _float32_product("tf32"):
        torch.mm(rounded, short.T, out=scores)
    _rule_out(scores, ruled_out)
    # The best `count` labels are in the `count` tiles with the best maxima.
    num_tiles = len(short) // TILE
    maxima = _tile_maxima(scores, base, length, slack)
    tiles = maxima.topk(min(count, num_tiles), sorted=False).indices
    bounds = scores.view(len(x), num_tiles, TILE).gather(1, tiles[:, :, None].expand(-1, -1, TILE))
    bounds += base.view(num_tiles, TILE)[tiles]
    bounds += slack.view(num_tiles, TILE)[tiles] * length[:, None, None]
    best, place = bounds.flatten(1).topk(count)
    labels = tiles.gather(1, place // TILE) * TILE + place % TILE
    return labels.clamp_(max=num_labels - 1), best[:, -1]  # only padding is clamped


def _within(excluded: tuple[Tensor, Tensor] | None, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """The excluded pairs of these rows (ascending), with places among them instead of rows."""
    if excluded is None:
        return None
    row, label = excluded
    held = torch.isin(row, rows)
    return torch.searchsorted(rows, row[held]), label[held]


def _rule_out(scores: Tensor, pairs: tuple[Tensor, Tensor] | None) -> None:
    """Set the scores of these (row, label) pairs to −∞."""
    if pairs is not None:
        scores[pairs] = -torch.inf


def _rounded(x: Tensor) -> Tensor:
    """x to the nearest TF32 number, so that tensor cores lose nothing of it."""
    return ((x.view(torch.int32) + 2**12) & -(2**13)).view(torch.float32)


def _lengths(x: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    """The length of each row, and that of its rounding error."""
    return torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(x - rounded, dim=1)


@contextmanager
def _float32_product(precision: str) -> Iterator[None]:
    """Multiply float32 matrices with this precision inside the block."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def _tile_maxima(scores: Tensor, base: Tensor, length: Tensor, slack: Tensor) -> Tensor:
    """`[b, tiles]` the largest scores + base + length · slack of each tile."""
    b = len(scores)
    num_tiles = scores.shape[1] // TILE
    out = scores.new_empty(b, num_tiles)
    grid = triton.cdiv(num_tiles, TILES), triton.cdiv(b, POINTS)
    _maxima[grid](
        scores, base, length, slack, out, b, num_tiles, tile=TILE, tiles=TILES, rows=POINTS
    )
    return out


def _score(x: Tensor, table: Tensor, base: Tensor, labels: Tensor) -> Tensor:
    """`[b, c]` x · table[label] + base[label] in float32."""
    b, count = labels.shape
    d = x.shape[1]
    out = x.new_empty(b, count)
    columns = min(COLUMNS, triton.next_power_of_2(d))
    _dots[b, triton.cdiv(count, LABELS)](
        x, table, base, labels, out, count, d, chunk=LABELS, columns=columns
    )
    return out


@triton.jit
def _maxima(
    scores, base, length, slack, out, b, num_tiles,
    tile: tl.constexpr, tiles: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """Numbers per label are loaded once for several points."""
    t = tl.program_id(0) * tiles + tl.arange(0, tiles)
    label = t[:, None] * tile + tl.arange(0, tile)[None, :]
    inside = label < num_tiles * tile
    offset = tl.load(base + label, mask=inside, other=0.0)
    per_length = tl.load(slack + label, mask=inside, other=0.0)
    for r in tl.static_range(rows):
        # the last point may be computed twice
        i = tl.minimum(tl.program_id(1) * rows + r, b - 1).to(tl.int64)
        score = tl.load(scores + i * num_tiles * tile + label, mask=inside, other=0.0)
        bound = score + offset + per_length * tl.load(length + i)
        # NaN counts as the highest, as in torch's topk: a maximum on a GPU would pass over it
        bound = tl.where(bound == bound, bound, float("inf"))  # noqa: PLR0124
        tl.store(out + i * num_tiles + t, tl.max(bound, 1), mask=t < num_tiles)


@triton.jit
def _dots(x, table, base, labels, out, count, d, chunk: tl.constexpr, columns: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * chunk + tl.arange(0, chunk)
    label = tl.load(labels + i * count + c, mask=c < count, other=0)
    products = tl.zeros((chunk, columns), tl.float32)
    for first in range(0, d, columns):
        column = first + tl.arange(0, columns)
        mask = (c < count)[:, None] & (column < d)[None, :]
        hidden = tl.load(x + i * d + column, mask=column < d, other=0.0)
        w = tl.load(table + label[:, None] * d + column[None, :], mask=mask, other=0.0)
        products += hidden[None, :] * w
    tl.store(out + i * count + c, tl.sum(products, 1) + tl.load(base + label), mask=c < count)
