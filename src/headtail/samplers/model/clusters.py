"""Labels laid out in blocks of neighbours: fewer dimensions, k-means, and blocks of bounded size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.samplers.scorer import finite_rows

AT_A_TIME = 2**23
"""How many distances, or numbers of a table, are held at a time."""
LABELS_COUNT = 0.1
"""Weight of the labels' own spread beside the hidden states': a small batch does not span all
directions that matter.
"""
PER_CLUSTER = 64
"""Labels that tell where a cluster lies: of a million, k-means need not look at all."""
IN_CACHE = 2**19
"""Distances that a CPU holds at a time: fresh memory costs more than they do."""


class Layout(NamedTuple):
    """Labels in block order: block B holds `order[start[B] : start[B] + size[B]]`.

    Attributes:
        order: `[L]` label ids.
        start: `[K]` where each block begins.
        size: `[K]` how many labels it holds; 0 for blocks that are not needed.
    """

    order: Int[Tensor, " L"]
    start: Int[Tensor, " K"]
    size: Int[Tensor, " K"]


def projection(
    hidden: Float[Tensor, "p d"], weight: Float[Tensor, "L d"], dim: int
) -> Float[Tensor, "d k"]:
    """`[d, k]` orthonormal directions that keep most of ⟨h, w⟩: the principal ones of the hidden
    states, then of the labels.

    With d ≤ k nothing is lost: the identity.
    """
    d = hidden.shape[1]
    if d <= dim:
        return torch.eye(d, dim, dtype=hidden.dtype, device=hidden.device)
    some = finite_rows(weight[:: max(1, len(weight) // (8 * d))])
    moments = [x.double().T @ x.double() for x in (hidden, some - some.mean(0))]
    of_hidden, of_labels = (moment / moment.trace().clamp(min=1e-300) for moment in moments)
    return (
        torch.linalg.eigh(of_hidden + LABELS_COUNT * of_labels)
        .eigenvectors[:, -dim:]
        .to(hidden.dtype)
        .contiguous()
    )


def nearest(rows: Float[Tensor, "L k"], centroids: Float[Tensor, "K k"]) -> Int[Tensor, " L"]:
    """`[L]` the nearest centroid of each row; `[L, K]` distances are never held whole."""
    half = -0.5 * centroids.pow(2).sum(1)
    part = max(1, (IN_CACHE if rows.device.type == "cpu" else AT_A_TIME) // len(centroids))
    return torch.cat([torch.addmm(half, some, centroids.T).argmax(1) for some in rows.split(part)])


def means(rows: Float[Tensor, "L k"], of: Int[Tensor, " L"], number: int) -> Float[Tensor, "K k"]:
    """`[K, k]` the mean row of each cluster; 0 where it is empty."""
    sums = torch.zeros(number, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add_(
        0, of, rows
    )
    return sums / torch.bincount(of, minlength=number).clamp(min=1)[:, None]


def lay_out(
    rows: Float[Tensor, "L k"], centroids: Float[Tensor, "K0 k"], steps: int, most: int, number: int
) -> Layout:
    """Cluster by k-means and cut clusters into blocks of at most `most` labels.

    Args:
        rows: `[L, k]` what is near what.
        centroids: `[K0, k]` where k-means starts.
        steps: of k-means.
        most: S, the largest block.
        number: K, how many blocks there may be; at least K0 + L / S.
    """
    some = rows[:: max(1, len(rows) // (PER_CLUSTER * len(centroids)))]
    for _ in range(steps):
        centroids = means(some, nearest(some, centroids), len(centroids))
    cluster = nearest(rows, centroids)
    # A cluster that must be cut is cut by length: long rows are labels the model knows well, short
    # ones it hardly does.
    by_length = rows.pow(2).sum(1).argsort(stable=True)
    order = by_length[cluster[by_length].argsort(stable=True)]
    found = torch.bincount(cluster, minlength=len(centroids))
    pieces = (found + most - 1) // most
    first = pieces.cumsum(0) - pieces
    within = torch.arange(len(rows), device=rows.device) - (found.cumsum(0) - found)[cluster[order]]
    size = torch.bincount(first[cluster[order]] + within // most, minlength=number)
    return Layout(order, size.cumsum(0) - size, size)
