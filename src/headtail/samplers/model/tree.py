"""A binary tree over labels, fitted from the top: nodes turn left or right by the hidden state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FITS_PER_NODE = 2
"""How often a node's direction and its two halves are fitted to each other."""
SMALL_NODE = 64
"""Up to so many labels lie so close together that only the spread of their examples matters."""
POWER_STEPS = 4
"""Power iterations for the direction in which a node's labels differ most: a start for the first
fit.
"""


class Tree(NamedTuple):
    """Nodes level by level, the root first: node n has the children 2n + 1 and 2n + 2.

    Attributes:
        leaf: `[L]` the place of each label on the lowest level, from the left.
        label: `[2^D]` the label of each leaf; 0 where there is none.
        slope: `[2^D − 1, k]` a hidden state x turns right with probability σ(⟨slope, x⟩ + shift).
        shift: `[2^D − 1]`.
        closed: `[2^D − 1]` whether there are no labels to the right.
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
    in turn. For given halves the direction has a closed form, the linear discriminant of two normal
    clouds, with the log-odds of a logistic regression: $\text{slope} = S^{-1}(\mu_R - \mu_L)$. For
    a given direction the half of the labels with the higher mean log-odds goes right.

    Args:
        mean: `[L, k]` the mean of each label's examples, in units in which their standard deviation
            is 1.
        count: `[L]` how many examples each label has; above 0.
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
        at = torch.stack([place.expand(len(here), -1), left[:, None] + place], 1)
        at = at.clamp(max=here.shape[1] - 1)
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
    and the size of the right half.
    """
    z = mean[here]
    held = torch.arange(here.shape[1], device=z.device) < number[:, None]
    weight = torch.where(held, count[here], 0.0)
    centred = z - _mean(z, weight)
    slope = centred[:, 0] + 1e-6
    for _ in range(POWER_STEPS):
        along = torch.einsum("nwk,nk->nw", centred, slope)
        slope = torch.einsum("nwk,nw->nk", centred, weight * along)
        slope = slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-30)
    shift = torch.zeros_like(slope[:, 0])
    right = number // 2
    place = torch.arange(here.shape[1], device=z.device)
    for _ in range(FITS_PER_NODE):
        odds = torch.where(held, torch.einsum("nwk,nk->nw", z, slope), torch.inf)
        order = odds.argsort(dim=1, stable=True)  # places without a label come last
        here = here.gather(1, order)
        weight = weight.gather(1, order)
        z = z.gather(1, order[..., None].expand_as(z))
        goes_right = held & (place >= (number - right)[:, None])
        left_weight = torch.where(goes_right, 0.0, weight)
        right_weight = torch.where(goes_right, weight, 0.0)
        slope, shift = _discriminant(z, left_weight, right_weight)
    return slope, shift, here, right


def _discriminant(z: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and shift of the log-odds of two normal clouds with a common spread: that of the
    examples, which is 1, plus that of the labels.
    """
    low, high = (_mean(z, weight) for weight in (left, right))
    slope = (high - low).squeeze(1)
    if z.shape[1] > SMALL_NODE:
        total = (left + right).sum(1).clamp(min=1e-30)[:, None, None]
        centred = [
            (z - mean) * weight.sqrt()[..., None] for mean, weight in ((low, left), (high, right))
        ]
        of_labels = sum(x.transpose(1, 2) @ x for x in centred) / total
        of_examples = torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
        slope = torch.linalg.solve(of_labels + of_examples, slope)
    sums = [weight.sum(1).clamp(min=1e-30) for weight in (left, right)]
    # The means of two small samples differ by chance alone: the slope is shrunk by the part of the
    # distance that chance explains (James and Stein).
    by_chance = z.shape[2] * (1 / sums[0] + 1 / sums[1])
    distance = (high - low).square().sum((1, 2)).clamp(min=1e-30)
    slope = (1 - (by_chance / distance).clamp(max=1.0))[:, None] * slope
    shift = sums[1].log() - sums[0].log() - 0.5 * (slope * (low + high).squeeze(1)).sum(1)
    return slope, shift


def _mean(z: Tensor, weight: Tensor) -> Tensor:
    """`[n, 1, k]` the weighted mean of each node; 0 if it is empty."""
    total = weight.sum(1).clamp(min=1e-30)[:, None, None]
    return torch.einsum("nwk,nw->nk", z, weight)[:, None] / total
