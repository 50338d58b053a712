"""The audit of draws from a pool, which claim no q, but enough for unbiased weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.samplers import Draw

MOST_CELLS = 20
"""Largest number of groups of labels."""
EXPECTED = 25.0
"""Smallest expected number of draws per group, so that its mean is nearly normal."""


def mean_weights(
    draw: Callable[[], Draw],
    share: Float64[Tensor, " L"],
    first: int,
    draws: int,
    progress: Callable[[Iterable[int]], Iterable[int]],
) -> tuple[float, int, float, int, float, list[tuple[int, int, float]]]:
    r"""Test that every label counts once on average: $\mathbb{E}[\sum_{s: y_s = y'}
    e^{\text{log\_keep}} / (m\, \hat q_s)] = 1$.

    Labels are tested in groups, each label weighted with its share of the model's softmax, because
    the mean of a label that is hardly ever drawn cannot be measured. The sums of one call depend on
    each other, so groups are tested jointly, by Hotelling's T².

    Args:
        draw: makes an independent draw; only its first example counts.
        share: `[L]` softmax of the logits of that example.
        first: its positive, which is not counted.
        draws: number of calls.
        progress: wraps the loop.

    Returns:
        The fields of an `Audit` after the number of draws: statistic, degrees of freedom, p-value,
        0 impossible draws, a log q error of 0, and (label, observed, expected) of the groups that
        deviate most.
    """
    from scipy.stats import f as fisher  # imported where used: `import headtail` stays fast

    cell, total = _cells(share, first, draws * draw().ids.shape[-1])
    value = torch.where(cell >= 0, share / total[cell.clamp(min=0)], 0.0)
    seen = torch.zeros(draws, len(total), dtype=torch.float64)
    for i in progress(range(draws)):
        ids, weight = _first_row(draw())
        counts = ids != first
        seen[i].index_add_(0, cell[ids[counts]], (weight * value[ids])[counts])
    mean = seen.mean(0)
    deviation = seen.sub_(mean)
    covariance = deviation.T @ deviation / (draws - 1)
    rank = int(torch.linalg.matrix_rank(covariance, hermitian=True))
    if rank == 0:  # every call gave the same sums
        exact = float((mean - 1).abs().max()) < 1e-9
        return (0.0 if exact else math.inf), 0, (1.0 if exact else 0.0), 0, 0.0, []
    statistic = draws * float(
        (mean - 1) @ torch.linalg.pinv(covariance, hermitian=True) @ (mean - 1)
    )
    p_value = float(
        fisher.sf(statistic * (draws - rank) / (rank * (draws - 1)), rank, draws - rank)
    )
    surprise = (mean - 1).abs() / covariance.diagonal().clamp(min=1e-300).sqrt()
    groups = [
        (int((share * (cell == g)).argmax()), g)
        for g in surprise.topk(min(5, len(total))).indices.tolist()
    ]
    worst = [(label, round(draws * float(mean[g])), float(draws)) for label, g in groups]
    return statistic, rank, p_value, 0, 0.0, worst


def _cells(
    share: Tensor, first: int, slots: int
) -> tuple[Int[Tensor, " L"], Float64[Tensor, " G"]]:
    """The group of each label, by share and with enough of it, −1 for the positive; and each
    group's share.
    """
    share = share.clone()
    share[first] = 0.0
    least = max(EXPECTED / slots, 1 / MOST_CELLS) * float(share.sum())
    order = share.argsort(descending=True, stable=True)
    cell = torch.empty_like(order)
    cell[order] = ((share[order].cumsum(0) - share[order]) / least).floor().long()
    _, cell = torch.unique(cell, return_inverse=True)
    total = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(0, cell, share)
    if len(total) > 1 and float(total[-1]) < least / 2:  # a small last group joins the one before
        cell[cell == len(total) - 1] = len(total) - 2
        total = torch.cat([total[:-2], total[-2:].sum().reshape(1)])
    cell[first] = -1
    return cell, total


def _first_row(draw: Draw) -> tuple[Tensor, Tensor]:
    keep = float(draw.log_keep[0]) if isinstance(draw.log_keep, Tensor) else draw.log_keep
    ids, log_q = (rows.reshape(-1, rows.shape[-1])[0].cpu() for rows in (draw.ids, draw.log_q))
    if not draw.m:
        return ids, torch.zeros(0, dtype=torch.float64)
    return ids, (keep - math.log(draw.m) - log_q).exp()
