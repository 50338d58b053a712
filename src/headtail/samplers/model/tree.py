"""A binary tree over labels whose nodes tell left from right by a hidden state, fitted from the top
down.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TURNS = 2
"""How often a node's direction and its two halves are fitted to each other."""
FEW = 64
"""Labels of a node up to which they lie so close together that their examples' own spread is all
there is.
"""
POWER_STEPS = 4
"""Towards the direction in which a node's labels differ most, which is all that the first turn
needs.
"""


class Tree(NamedTuple):
    """Nodes level by level, the root first: node n has the children 2n + 1 and 2n + 2.

    Attributes:
        leaf: `[L]` where each label stands on the lowest level, counted from its left end.
        label: `[2^D]` the label of each leaf; 0 where there is none.
        slope: `[2^D − 1, k]` and
        shift: `[2^D − 1]`: a hidden state x turns right with probability σ(⟨slope, x⟩ + shift).
        closed: `[2^D − 1]` whether there is nothing to the right.
    """

    leaf: Int[Tensor, " L"]
    label: Int[Tensor, " leaves"]
    slope: Float[Tensor, "nodes k"]
    shift: Float[Tensor, " nodes"]
    closed: Bool[Tensor, " nodes"]


def depth_of(num_labels: int) -> int:
    """D: levels of decisions."""
    return max(1, (num_labels - 1).bit_length())


def fit(mean: Float[Tensor, "L k"], count: Float[Tensor, " L"]) -> Tree:
    r"""Fit a tree to the hidden states of each label's examples, given by their means and numbers.

    As in Bamler and Mandt (2020): at each node a direction and the halves of its labels are fitted
    in turn. For given halves the direction comes in closed form, as the linear discriminant of two
    normal clouds, whose log-odds are those of a logistic regression: $\text{slope} = S^{-1}(\mu_R -
    \mu_L)$. For a given direction a label belongs right if its examples' mean log-odds say so, and
    the better half of them is taken.

    Args:
        mean: `[L, k]` where each label's examples lie, in units in which they scatter by 1 about
            it.
        count: `[L]` how many there are; above 0.
    """
    size = len(mean)
    here = torch.arange(size, device=mean.device)[None]
    number = torch.tensor([size], device=mean.device)
    slopes = []
    shifts = []
    closed = []
    for _ in range(depth_of(size)):
        slope, shift, here, right = _split(mean, count, here, number)
        left = number - right
        width = (here.shape[1] + 1) // 2
        place = torch.arange(width, device=mean.device)
        at = torch.stack([place.expand(len(here), -1), left[:, None] + place], 1).clamp(
            max=here.shape[1] - 1
        )
        here = here[:, None].expand(-1, 2, -1).gather(2, at).flatten(0, 1)
        slopes.append(slope)
        shifts.append(shift)
        closed.append(right == 0)
        number = torch.stack([left, right], 1).flatten()
    label = torch.where(number > 0, here[:, 0], 0)
    leaf = torch.empty(size, dtype=torch.int64, device=mean.device)
    filled = number > 0
    leaf[label[filled]] = filled.nonzero().squeeze(1)
    return Tree(leaf, label, torch.cat(slopes), torch.cat(shifts), torch.cat(closed))


def _split(
    mean: Tensor, count: Tensor, here: Tensor, number: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slope and shift of each node `[n]` of a level, its labels `[n, w]` with the left half first,
    and the size of the right.
    """
    z = mean[here]
    held = torch.arange(here.shape[1], device=z.device) < number[:, None]
    weight = torch.where(held, count[here], 0.0)
    centred = z - _mean(z, weight)
    slope = centred[:, 0] + 1e-6
    for _ in range(POWER_STEPS):
        slope = torch.einsum(
            "nwk,nw->nk", centred, weight * torch.einsum("nwk,nk->nw", centred, slope)
        )
        slope = slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-30)
    shift = torch.zeros_like(slope[:, 0])
    right = number // 2
    place = torch.arange(here.shape[1], device=z.device)
    for _ in range(TURNS):
        odds = torch.where(held, torch.einsum("nwk,nk->nw", z, slope), torch.inf)
        order = odds.argsort(dim=1, stable=True)  # places without a label stay behind all others
        here = here.gather(1, order)
        weight = weight.gather(1, order)
        z = z.gather(1, order[..., None].expand_as(z))
        goes = held & (place >= (number - right)[:, None])
        slope, shift = _discriminant(
            z, torch.where(goes, 0.0, weight), torch.where(goes, weight, 0.0)
        )
    return slope, shift, here, right


def _discriminant(z: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and shift of the log-odds of two normal clouds with a common spread: that of examples,
    1, and that of their labels.
    """
    low, high = (_mean(z, weight) for weight in (left, right))
    slope = (high - low).squeeze(1)
    if z.shape[1] > FEW:
        total = (left + right).sum(1).clamp(min=1e-30)[:, None, None]
        apart = [
            (z - mean) * weight.sqrt()[..., None] for mean, weight in ((low, left), (high, right))
        ]
        spread = sum(x.transpose(1, 2) @ x for x in apart) / total + torch.eye(
            z.shape[2], dtype=z.dtype, device=z.device
        )
        slope = torch.linalg.solve(spread, slope)
    sums = [weight.sum(1).clamp(min=1e-30) for weight in (left, right)]
    # Two means of a few examples lie apart by chance alone: what chance explains is taken off
    # (James and Stein).
    by_chance = z.shape[2] * (1 / sums[0] + 1 / sums[1])
    sure = 1 - (by_chance / (high - low).square().sum((1, 2)).clamp(min=1e-30)).clamp(max=1.0)
    slope = sure[:, None] * slope
    return slope, sums[1].log() - sums[0].log() - 0.5 * (slope * (low + high).squeeze(1)).sum(1)


def _mean(z: Tensor, weight: Tensor) -> Tensor:
    """`[n, 1, k]` the weighted mean of each node; 0 where it is empty."""
    return (
        torch.einsum("nwk,nw->nk", z, weight)[:, None]
        / weight.sum(1).clamp(min=1e-30)[:, None, None]
    )
