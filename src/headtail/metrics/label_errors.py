"""The error of each label."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.metrics.ranked import Ranked


class LabelErrors(NamedTuple):
    """The error of each label.

    Attributes:
        points: `[L]` test pairs of each label.
        error: `[L]` the share of them for which another label came first; nan where there are none.
    """

    points: Int64[Tensor, " L"]
    error: Float64[Tensor, " L"]


def label_errors(top: Int[Tensor, "n K"], labels: Ragged, num_labels: int) -> LabelErrors:
    """The error of each label; their mean over the labels in the test set is the balanced error.

    Args:
        top: `[n, K]` the best labels of each point, best first.
        labels: the labels of the same points.
        num_labels: L.

    >>> label_errors(torch.tensor([[0, 1], [0, 1]]), Ragged.from_lists([[0], [1]]), num_labels=3)
    LabelErrors(points=tensor([1, 1, 0]), error=tensor([0., 1., nan], dtype=torch.float64))
    """
    ranked = Ranked.of(top[:, :1], labels, num_labels)
    missed = torch.bincount(ranked.label, 1 - ranked.hit(1), minlength=num_labels)
    points = torch.bincount(ranked.label, minlength=num_labels)
    return LabelErrors(points, missed / points)
