"""A training step of the label head, its size and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F

Method = Literal["exact", "chunked", "sampled"]
METHODS: tuple[Method, ...] = ("exact", "chunked", "sampled")
NUMBER = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Shape:
    """The size of one training step of a label head.

    Attributes:
        labels: L.
        dim: d.
        batch: b.
        negatives: m, shared by the batch; exact losses ignore it.
    """

    labels: int
    dim: int
    batch: int
    negatives: int

    @property
    def chunk(self) -> int:
        """Examples per chunk of the chunked loss.

        The scores of a chunk then take a quarter of the memory of the table, or of all scores. Each
        chunk adds to the gradient of the whole table, so much smaller chunks would spend their time
        on that.
        """
        return max(1, min(self.batch, self.dim) // 4)


def memory_of(method: Method, shape: Shape) -> int:
    """Bytes that a step needs at its peak, in float32 with Adagrad: table, its state, its gradient
    if dense, and workspace.
    """
    table = shape.labels * shape.dim
    scores = shape.batch * shape.labels
    hidden = shape.batch * shape.dim
    match method:
        case "exact":  # scores, their log-softmax and its gradient
            numbers = 3 * table + 3 * scores + 2 * hidden
        case "chunked":  # each chunk has its own gradient of the table
            numbers = 4 * table + 2 * shape.chunk * shape.labels + 3 * hidden
        # The rows in use with gradients and sums, the scores of the negatives, and the sampler's
        # tables.
        case "sampled":
            rows = (shape.batch + shape.negatives) * shape.dim
            numbers = 2 * table + 4 * rows + 3 * shape.batch * shape.negatives + 4 * shape.labels
    return NUMBER * numbers


def possible() -> tuple[Method, ...]:
    """The methods that the installed torch has."""
    return METHODS if hasattr(F, "linear_cross_entropy") else ("exact", "sampled")
