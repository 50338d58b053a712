"""Labels laid out in blocks of neighbours: projection, k-means, and blocks of bounded size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.samplers.scorer import finite_rows

NUMBERS_AT_ONCE = 2**23
"""How many distances, or numbers of a table, are held at a time."""
CPU_DISTANCES_AT_ONCE = 2**19
"""On a CPU fewer distances are held at a time: fresh memory costs more than computing them."""
LABEL_SPREAD = 0.1
"""Weight of the labels' spread relative to that of hidden states: a small batch does not span all
directions that matter.
"""
LABELS_PER_CLUSTER = 64
"""k-means uses about this many labels per cluster, not all of a million."""


class Layout(NamedTuple):
    """Labels in block order: block B holds `order[start[B] : start[B] + size[B]]`.

    Attributes:
        order: `[L]` label ids.
        start: `[K]` where each block begins.
        size: `[K]` how many labels each holds; 0 for blocks that are not needed.
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
    labels = finite_rows(weight[:: max(1, len(weight) // (8 * d))])
    moments = [x.double().T @ x.double() for x in (hidden, labels - labels.mean(0))]
    of_hidden, of_labels = (moment / moment.trace().clamp(min=1e-300) for moment in moments)
    directions = torch.linalg.eigh(of_hidden + LABEL_SPREAD * of_labels).eigenvectors
    return directions[:, -dim:].to(hidden.dtype).contiguous()


def nearest(
    rows: Float[Tensor, "L k"], centroids: Float[Tensor, "K k"], at_once: int | None = None
) -> Int[Tensor, " L"]:
    """`[L]` the nearest centroid of each row.

    Args:
        rows: `[L, k]`.
        centroids: `[K, k]`.
        at_once: how many of the `[L, K]` distances are held at a time.
    """
    if at_once is None:
        at_once = CPU_DISTANCES_AT_ONCE if rows.device.type == "cpu" else NUMBERS_AT_ONCE
    half = -0.5 * centroids.pow(2).sum(1)
    parts = rows.split(max(1, at_once // len(centroids)))
    return torch.cat([torch.addmm(half, part, centroids.T).argmax(1) for part in parts])


def means(
    rows: Float[Tensor, "L k"], cluster: Int[Tensor, " L"], number: int
) -> Float[Tensor, "K k"]:
    """`[K, k]` the mean row of each cluster; 0 if it is empty."""
    sums = rows.new_zeros(number, rows.shape[1]).index_add_(0, cluster, rows)
    return sums / torch.bincount(cluster, minlength=number).clamp(min=1)[:, None]


def lay_out(
    rows: Float[Tensor, "L k"],
    centroids: Float[Tensor, "K0 k"],
    steps: int,
    capacity: int,
    number: int,
) -> Layout:
    """Cluster by k-means and cut clusters into blocks of at most `capacity` labels.

    Args:
        rows: `[L, k]`.
        centroids: `[K0, k]` where k-means starts.
        steps: of k-means.
        capacity: S, how many labels a block can hold.
        number: K, how many blocks there may be; at least K0 + L / S.
    """
    fewer = rows[:: max(1, len(rows) // (LABELS_PER_CLUSTER * len(centroids)))]
    for _ in range(steps):
        centroids = means(fewer, nearest(fewer, centroids), len(centroids))
    cluster = nearest(rows, centroids)
    # A cluster that must be cut is cut by length: the model knows labels with long rows well, and
    # those with short rows hardly.
    by_length = rows.pow(2).sum(1).argsort(stable=True)
    order = by_length[cluster[by_length].argsort(stable=True)]
    held = torch.bincount(cluster, minlength=len(centroids))
    blocks = (held + capacity - 1) // capacity
    first_block = (blocks.cumsum(0) - blocks)[cluster[order]]
    first_place = (held.cumsum(0) - held)[cluster[order]]
    place = torch.arange(len(rows), device=rows.device) - first_place
    size = torch.bincount(first_block + place // capacity, minlength=number)
    return Layout(order, size.cumsum(0) - size, size)
