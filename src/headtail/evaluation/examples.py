"""A few test points, with what a model answers: for readers who want to see labels, not numbers."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.core.slices import NAMES, Slices
from headtail.data.points import DataSet

POINTS = 2
"""Test points with a right label in each slice."""
ANSWERS = 5


def examples_of(top: Int[Tensor, "n k"], data: DataSet, slices: Slices) -> list[dict[str, Any]]:
    """The first test points with a right label in the head, the torso and the tail; none twice.

    Args:
        top: the best labels of each test point.
        data: the data set.
        slices: head, torso and tail.

    Returns:
        For each: `point` (its row in the test part), `slice`, `right` and `answers` (names of
        labels; ids where they have none).
    """
    labels = data.test.labels
    names = data.label_names or range(data.test.num_labels)
    owner = torch.arange(len(data.test)).repeat_interleave(labels.offsets.diff())
    found: list[dict[str, Any]] = []
    free = torch.ones(len(data.test), dtype=torch.bool)
    for slice_ in NAMES:
        inside = getattr(slices, slice_)[labels.values.long()]
        candidates = owner[inside].unique()
        for point in candidates[free[candidates]][:POINTS].tolist():
            free[point] = False
            start, end = labels.offsets[point : point + 2].tolist()
            right = labels.values[start:end].tolist()
            answers = [label for label in top[point, :ANSWERS].tolist() if label >= 0]
            found.append(
                {
                    "point": point if data.test.rows is None else int(data.test.rows[point]),
                    "slice": slice_,
                    "right": [str(names[label]) for label in right],
                    "answers": [str(names[label]) for label in answers],
                }
            )
    return found
