"""The sampled losses and their gradients on CUDA by Triton, in three launches:

1. scores F = X·Wᵀ, in tiles;
2. losses and coefficients C = ∂/∂F, one example a program: the equations, and the only place that
  knows them;
3. gradients C·W of the inputs and Cᵀ·X of the negatives, in tiles.

Scores, and then coefficients in their place, are held in a workspace of bounded size, and a large
batch goes through it part by part. To compute scores anew wherever they are needed, as attention
does, would save it for one or two matrix products more, and float32 products are dear: each takes
three of the tensor cores'. No sum depends on timing: equal inputs give equal bits.
"""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headtail.kernels.gradient import LossGradients
from headtail.kernels.triton.per_example import OWN, own_input, own_scores
from headtail.kernels.triton.pieces import exp, log1p, per_row, piece_of, rows_of

WORKSPACE = 2**24
"""Scores that are held at a time, 64 MiB."""
FILLED = 128
"""Programs that keep a GPU busy."""
# Tile shapes, the length of the sums taken at a time, and how to compile; tried out on an H200 at b
# = 1024, m = 256, d = 512.
SCORES = {"height": 128, "width": 64, "step": 32, "num_warps": 8, "num_stages": 4}
GRADIENTS = {"height": 32, "width": 64, "step": 32, "num_warps": 4, "num_stages": 4}


def sampled_softmax(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor | None, a: Tensor | float, b: Tensor | float, known: Tensor | None, scale: Tensor | float,
) -> LossGradients:  # fmt: skip
    """log(1 + Σ_j e^(f_j − f_y + a + b_j)) of each example, and gradients; tensors are contiguous.

    Args:
        input: `[b, d]` float32 or bfloat16.
        table: `[T, d]` rows, taken in the precision of `input`.
        bias: `[T]` or `[T, 1]`, or None.
        positive: `[b]` the row of each example's positive.
        negatives: `[m]` or `[b, m]` rows.
        label: `[b]` and
        ids: like `negatives`: where they agree, a draw does not count. None: nothing collides.
        a: `[b]` and
        b: like `negatives`: the log-weights; each may be one number for all.
        known: `[b, m]` further draws that do not count, or None.
        scale: `[b]` what each loss counts in the total, or one number; where it is 0, all gradients
            are 0.
    """
    return _fused(
        input, table, bias, positive, negatives, label, ids, a, b, known, scale, None, 0.0
    )


def sampled_decoupled(
    input: Tensor, table: Tensor, bias: Tensor | None, positive: Tensor, negatives: Tensor,
    label: Tensor | None, ids: Tensor | None, a: Tensor | float, b: Tensor | float, known: Tensor | None, scale: Tensor | float,
    piece: int, margin: float,
) -> LossGradients:  # fmt: skip
    """φ(f_y) + Σ_j e^(a + b_j) · ϕ(−f_j) of each example, and gradients; arguments as in
    `sampled_softmax`.

    `piece` is 0 for logistic, 1 for hinge, 2 for squared hinge, and 3 for contrastive with
    `margin`.
    """
    return _fused(
        input, table, bias, positive, negatives, label, ids, a, b, known, scale, piece, margin
    )


def _fused(
    input, table, bias, positive, negatives, label, ids, a, b, known, scale, piece, margin
) -> LossGradients:
    n, d = input.shape
    m = negatives.shape[-1]
    shared = negatives.dim() == 1
    real = {"dtype": torch.float32, "device": input.device}
    part = min(n, max(1, WORKSPACE // m)) if shared else n
    loss = torch.empty(n, **real)
    of_input = torch.empty(n, d, **real)
    of_scores = torch.empty(n + negatives.numel(), **real)
    of_rows = torch.empty(n + m, d, **real) if shared else None
    of_positive = of_scores[:n]
    of_drawn = of_scores[n:]
    total = torch.empty((), **real) if shared else None
    coefs = (
        torch.empty(_splits(SCORES, part, m, d), part, m, **real)
        if shared
        else of_drawn.reshape(1, n, m)
    )
    partial, tickets = _room(n, m, d, input.device) if shared else (None, None)
    block_d, block_m = (min(2048, max(16, triton.next_power_of_2(size))) for size in (d, m))
    exact = torch.get_float32_matmul_precision() == "highest"
    # A weighting of the caller's own may hand over a view.
    a, b, scale = (t if isinstance(t, float) else t.contiguous() for t in (a, b, scale))
    shared_b = isinstance(b, float) or b.dim() == 1
    for start in range(0, n, part):
        x, y, of_y = (t[start : start + part] for t in (input, positive, of_positive))
        s, a_here = (t if isinstance(t, float) else t[start : start + part] for t in (scale, a))
        losses = loss[start : start + part]
        per_example = (
            None if t is None else t[start : start + part] for t in (label, known, loss, of_rows)
        )
        b_here = b if shared_b else b[start : start + part]
        _scores_of(x, table, negatives, coefs, exact)
        _equation[(len(x),)](
            x, table, bias, y, negatives, ids, b_here, s, of_y, a_here, *per_example, coefs, coefs.stride(0), tickets, m, d, margin,
            0 if tickets is None else len(tickets),
            one_a=isinstance(a, float), one_b=isinstance(b, float), one_s=isinstance(scale, float),
            splits=len(coefs), shared=shared, shared_b=shared_b, piece=piece,
            block_d=block_d, blocks_d=triton.cdiv(d, block_d), block_m=block_m, blocks_m=triton.cdiv(m, block_m),
            num_warps=1 if max(block_d, block_m) <= 512 else 4,
        )  # fmt: skip
        of_x = of_input[start : start + part]
        more = start > 0
        if of_rows is None:
            own_input[n, triton.cdiv(d, OWN["block_d"])](
                table, y, negatives, s, coefs, of_y, of_x, m, d, one_s=isinstance(s, float), **OWN
            )
        else:
            sums = of_x, of_rows[n:], of_drawn, losses, total
            _gradients_of(
                x, table, y, negatives, s, coefs, of_y, *sums, partial, tickets, more, exact
            )
    return LossGradients(loss, of_input, of_scores, of_rows, total)


def _scores_of(x, table, negatives, scores, exact) -> None:
    n, d = x.shape
    m = negatives.shape[-1]
    if negatives.dim() == 2:
        own_scores[n, triton.cdiv(m, OWN["rows"])](x, table, negatives, scores, m, d, **OWN)
        return
    grid = triton.cdiv(n, SCORES["height"]), triton.cdiv(m, SCORES["width"]), len(scores)
    _scores[grid](
        x,
        table,
        negatives,
        scores,
        scores.stride(0),
        n,
        m,
        d,
        splits=len(scores),
        exact=exact,
        **SCORES,
    )


def _gradients_of(
    x, table, y, negatives, scale, coefs, of_y, of_input, of_negatives, of_scores, losses, total, partial, tickets, more, exact
) -> None:  # fmt: skip
    n, d = x.shape
    m = negatives.shape[-1]
    height = GRADIENTS["height"]
    across = triton.cdiv(d, GRADIENTS["width"])
    programs = (
        1 + triton.cdiv(m, height) * (1 + across * len(partial)) + triton.cdiv(n, height) * across
    )
    _gradients[(programs,)](
        x, table, y, negatives, scale, coefs, of_y, of_input, of_negatives, of_scores, losses, total,
        partial, partial.stride(0), tickets, n, m, d,
        one_s=isinstance(scale, float), more=more, splits=len(partial), exact=exact, **GRADIENTS,
    )  # fmt: skip


def _room(n: int, m: int, d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For parts of the negatives' gradient, and to count those that are done."""
    partial = torch.empty(_splits(GRADIENTS, m, d, n), m, d, dtype=torch.float32, device=device)
    tiles = triton.cdiv(m, GRADIENTS["height"]) * triton.cdiv(d, GRADIENTS["width"])
    return partial, torch.empty(tiles, dtype=torch.int32, device=device)


def _splits(tiles: dict[str, int], height: int, width: int, length: int) -> int:
    """Into how many parts to cut each sum of a matrix product, so that a small one still fills the
    machine.
    """
    count = triton.cdiv(height, tiles["height"]) * triton.cdiv(width, tiles["width"])
    return max(1, min(FILLED // count, length // (2 * tiles["step"])))


@triton.jit
def _dot(u, v, total, exact: tl.constexpr):
    """total + U·V; as torch's, unless `exact`, from 11 leading digits of float32 numbers.

    Else float32 is cut into leading and trailing digits, and only trailing times trailing is left
    out. The sum is taken apart from the total, because tensor cores do not round what they add up.
    """
    if u.dtype == tl.float32 and exact:
        u_lead = _leading(u)
        v_lead = _leading(v)
        part = tl.dot(u - u_lead, v_lead, input_precision="tf32")
        part = tl.dot(u_lead, v - v_lead, part, input_precision="tf32")
        return total + tl.dot(u_lead, v_lead, part, input_precision="tf32")
    else:
        return tl.dot(u, v, total, input_precision="tf32")


@triton.jit
def _leading(x):
    """x rounded to the 11 digits that a tensor core takes."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _range(split, splits: tl.constexpr, length, step: tl.constexpr):
    """Where a part of a sum begins and ends."""
    span = tl.cdiv(tl.cdiv(length, step), splits) * step
    return split * span, tl.minimum(length, split * span + span)


@triton.jit
def _scores(
    x, table, negatives, scores, stride, n, m, d,
    splits: tl.constexpr, exact: tl.constexpr, height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """F = X·Wᵀ: a tile, summed over some of the columns."""
    i = tl.program_id(0) * height + tl.arange(0, height)
    j = tl.program_id(1) * width + tl.arange(0, width)
    rows = tl.load(negatives + j, mask=j < m, other=0)
    f = tl.zeros((height, width), tl.float32)
    first, last = _range(tl.program_id(2), splits, d, step)
    for start in range(first, last, step):
        k = start + tl.arange(0, step)
        x_tile = rows_of(x, i, i < n, k, d)
        w_tile = rows_of(table, rows, j < m, k, d).to(x_tile.dtype)
        f = _dot(x_tile, tl.trans(w_tile), f, exact)
    scores += tl.program_id(2).to(tl.int64) * stride
    tl.store(
        scores + i.to(tl.int64)[:, None] * m + j[None, :],
        f,
        mask=(i < n)[:, None] & (j < m)[None, :],
    )


@triton.jit
def _gradients(
    x, table, positive, negatives, scale, coefs, of_positive, of_input, of_negatives, of_scores, losses, total,
    partial, stride, tickets, n, m, d,
    one_s: tl.constexpr, more: tl.constexpr, splits: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """Programs of four kinds: sums of coefficients, parts of the negatives' gradient, tiles of the
    inputs', and the loss.
    """
    program = tl.program_id(0)
    down = tl.cdiv(m, height)
    across = tl.cdiv(d, width)
    if program == tl.num_programs(0) - 1:
        _total(losses, scale, total, n, one_s, more)
    elif program < down:
        _of_scores(program, coefs, of_scores, n, m, more, height)
    elif program < down + down * across * splits:
        program -= down
        _of_negatives(
            program,
            x,
            coefs,
            of_negatives,
            partial,
            stride,
            tickets,
            n,
            m,
            d,
            more,
            splits,
            exact,
            height,
            width,
            step,
        )
    else:
        program -= down + down * across * splits
        _of_input(
            program, x, table, positive, negatives, scale, coefs, of_positive, of_input, n, m, d,
            one_s, exact, height, width, step,
        )  # fmt: skip


@triton.jit
def _coefs(coefs, i, j, n, m):
    """A tile of C; 0 beyond its edges."""
    return tl.load(
        coefs + i.to(tl.int64)[:, None] * m + j[None, :],
        mask=(i < n)[:, None] & (j < m)[None, :],
        other=0.0,
    )


@triton.jit
def _of_scores(program, coefs, of_scores, n, m, more: tl.constexpr, height: tl.constexpr):
    """Sums of C over examples, added to what earlier parts of the batch gave."""
    j = program * height + tl.arange(0, height)
    step: tl.constexpr = 8192 // height  # nothing but loads: many at a time
    total = tl.zeros((step, height), tl.float32)
    for start in range(0, n, step):
        total += _coefs(coefs, start + tl.arange(0, step), j, n, m)
    sums = tl.sum(total, 0)
    if more:
        sums += tl.load(of_scores + j, mask=j < m, other=0.0)
    tl.store(of_scores + j, sums, mask=j < m)


@triton.jit
def _total(losses, scale, total, n, one_s: tl.constexpr, more: tl.constexpr):
    """Σ scale · loss, added to what earlier parts of the batch gave; one that does not count is
    selected away.
    """
    sums = tl.zeros((1024,), tl.float32)
    for start in range(0, n, 1024):
        i = start + tl.arange(0, 1024)
        s = per_row(scale, i, i < n, one_s)
        sums += tl.where(s == 0, 0.0, tl.load(losses + i, mask=i < n, other=0.0) * s)
    whole = tl.sum(sums)
    if more:
        whole += tl.load(total)
    tl.store(total, whole)


@triton.jit
def _of_negatives(
    program, x, coefs, of_negatives, partial, stride, tickets, n, m, d,
    more: tl.constexpr, splits: tl.constexpr, exact: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """Cᵀ·X over some of the examples; whoever comes last adds the parts up, in their order."""
    place = program // splits
    split = program % splits
    across = tl.cdiv(d, width)
    j = (place // across) * height + tl.arange(0, height)
    k = (place % across) * width + tl.arange(0, width)
    g = tl.zeros((height, width), tl.float32)
    first, last = _range(split, splits, n, step)
    for start in range(first, last, step):
        i = start + tl.arange(0, step)
        x_tile = rows_of(x, i, i < n, k, d)
        # One that does not count may hold anything, and 0 · inf is not a number. In one that
        # counts, C is not a number either.
        x_tile = tl.where(tl.abs(x_tile) < float("inf"), x_tile, 0.0)
        g = _dot(tl.trans(_coefs(coefs, i, j, n, m)).to(x_tile.dtype), x_tile, g, exact)
    to = j.to(tl.int64)[:, None] * d + k[None, :]
    inside = (j < m)[:, None] & (k < d)[None, :]
    tl.store(partial + split.to(tl.int64) * stride + to, g, mask=inside)
    tl.debug_barrier()  # all of this part is written before it is counted
    if tl.atomic_add(tickets + place, 1) == splits - 1:
        g = tl.zeros((height, width), tl.float32)
        for s in range(splits):
            g += tl.load(partial + s * stride + to, mask=inside, other=0.0, cache_modifier=".cg")
        if more:
            g += tl.load(of_negatives + to, mask=inside, other=0.0)
        tl.store(of_negatives + to, g, mask=inside)


@triton.jit
def _of_input(
    program, x, table, positive, negatives, scale, coefs, of_positive, of_input, n, m, d,
    one_s: tl.constexpr, exact: tl.constexpr, height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """C·W, and the positive's row times its coefficient."""
    across = tl.cdiv(d, width)
    dtype = x.dtype.element_ty
    i = (program // across) * height + tl.arange(0, height)
    k = (program % across) * width + tl.arange(0, width)
    w_y = rows_of(table, tl.load(positive + i, mask=i < n, other=0), i < n, k, d).to(tl.float32)
    g = tl.load(of_positive + i, mask=i < n, other=0.0)[:, None] * w_y
    for start in range(0, m, step):
        j = start + tl.arange(0, step)
        w_tile = rows_of(table, tl.load(negatives + j, mask=j < m, other=0), j < m, k, d).to(dtype)
        g = _dot(_coefs(coefs, i, j, n, m).to(dtype), w_tile, g, exact)
    alive = per_row(scale, i, i < n, one_s) != 0
    to = i.to(tl.int64)[:, None] * d + k[None, :]
    tl.store(
        of_input + to, tl.where(alive[:, None], g, 0.0), mask=(i < n)[:, None] & (k < d)[None, :]
    )


@triton.jit
def _equation(
    x, table, bias, positive, negatives, ids, b, scale, of_positive, a, label, known, loss, of_rows,
    coefs, stride, tickets, m, d, margin, tiles,
    one_a: tl.constexpr, one_b: tl.constexpr, one_s: tl.constexpr,
    splits: tl.constexpr, block_d: tl.constexpr, blocks_d: tl.constexpr, block_m: tl.constexpr, blocks_m: tl.constexpr,
    shared: tl.constexpr, shared_b: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """One example: its scores become its loss and, in place, its coefficients."""
    i = tl.program_id(0).to(tl.int64)
    if tickets is not None:
        for place in range(tl.program_id(0), tiles, tl.num_programs(0)):
            tl.store(tickets + place, 0)  # nobody has come yet
    y = tl.load(positive + i)
    s = per_row(scale, i, i >= 0, one_s)
    a_i = per_row(a, i, i >= 0, one_a)
    products = tl.zeros((block_d,), tl.float32)
    for block in range(blocks_d):
        k = block * block_d + tl.arange(0, block_d)
        x_i = tl.load(x + i * d + k, mask=k < d, other=0.0)
        products += x_i.to(tl.float32) * tl.load(table + y * d + k, mask=k < d, other=0.0).to(
            x_i.dtype
        ).to(tl.float32)
    f_y = tl.sum(products)
    if bias is not None:
        f_y += tl.load(bias + y).to(tl.float32)
    if piece is None:
        top = 0.0
        rest = 0.0
        j = tl.arange(0, block_m)
        z = tl.zeros((block_m,), tl.float32)
        for block in range(blocks_m):
            j = block * block_m + tl.arange(0, block_m)
            f, b_j, counts = _draws(
                i,
                j,
                coefs,
                stride,
                bias,
                negatives,
                ids,
                b,
                label,
                known,
                m,
                one_b,
                splits,
                shared,
                shared_b,
            )
            z = tl.where(counts, (f + b_j) + (a_i - f_y), -float("inf"))
            higher = tl.maximum(top, tl.max(z))
            rest = rest * tl.exp(top - higher) + tl.sum(tl.exp(z - higher))
            top = higher
        total = rest + tl.exp(-top)  # the positive's own term is e^0
        for block in range(blocks_m):
            if blocks_m > 1:  # else they are still at hand
                j = block * block_m + tl.arange(0, block_m)
                f, b_j, counts = _draws(
                    i,
                    j,
                    coefs,
                    stride,
                    bias,
                    negatives,
                    ids,
                    b,
                    label,
                    known,
                    m,
                    one_b,
                    splits,
                    shared,
                    shared_b,
                )
                z = tl.where(counts, (f + b_j) + (a_i - f_y), -float("inf"))
            tl.store(
                coefs + i * m + j, tl.where(s == 0, 0.0, tl.exp(z - top) * (s / total)), mask=j < m
            )
        value_y = tl.where(top > 0, top + tl.log(total), log1p(rest))
        slope_y = rest / total
    else:
        total = 0.0
        for block in range(blocks_m):
            j = block * block_m + tl.arange(0, block_m)
            f, b_j, counts = _draws(
                i,
                j,
                coefs,
                stride,
                bias,
                negatives,
                ids,
                b,
                label,
                known,
                m,
                one_b,
                splits,
                shared,
                shared_b,
            )
            w = exp(a_i + b_j)
            value, slope = piece_of(f, piece, margin)
            # A masked weight may be infinite, and 0 · inf is not a number: the mask selects, it
            # never multiplies.
            total += tl.sum(tl.where(counts, w * value, 0.0))
            tl.store(
                coefs + i * m + j,
                tl.where(counts, tl.where(s == 0, 0.0, s * w * slope), 0.0),
                mask=j < m,
            )
        value_y, slope_y = piece_of(-f_y, piece, margin)
        if piece == 3:
            value_y = 0.5 * (1 - f_y) * (1 - f_y)
            slope_y = 1 - f_y
        value_y += total
    tl.store(loss + i, value_y)
    of_y = tl.where(s == 0, 0.0, -s * slope_y)
    tl.store(of_positive + i, of_y)
    if of_rows is not None:
        for block in range(blocks_d):
            k = block * block_d + tl.arange(0, block_d)
            x_i = tl.load(x + i * d + k, mask=k < d, other=0.0).to(tl.float32)
            tl.store(of_rows + i * d + k, tl.where(s == 0, 0.0, of_y * x_i), mask=k < d)


@triton.jit
def _draws(
    i, j, coefs, stride, bias, negatives, ids, b, label, known, m,
    one_b: tl.constexpr, splits: tl.constexpr, shared: tl.constexpr, shared_b: tl.constexpr,
):  # fmt: skip
    """Scores and log-weights of an example's draws j, and which of them count."""
    inside = j < m
    own = i * m + j
    drawn = j if shared else own
    f = tl.load(coefs + own, mask=inside, other=0.0)
    for split in tl.static_range(1, splits):
        f += tl.load(coefs + split * stride + own, mask=inside, other=0.0)
    if bias is not None:
        f += tl.load(
            bias + tl.load(negatives + drawn, mask=inside, other=0), mask=inside, other=0.0
        ).to(tl.float32)
    b_j = per_row(b, j if shared_b else own, inside, one_b)
    counts = inside
    if label is not None:
        counts &= tl.load(ids + drawn, mask=inside, other=0) != tl.load(label + i)
    if known is not None:
        counts &= tl.load(known + own, mask=inside, other=1) == 0
    return f, b_j, counts
