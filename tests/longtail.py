"""A long-tailed set of vectors with one label each: what stands in for pictures where a network
would only cost time.
"""

from __future__ import annotations

import torch

from headtail.core.targets import Ragged
from headtail.data.points import DataSet, Points

COUNTS = (160, 120, 60, 40, 24, 10, 6, 4)
"""Training examples of each class: two of them head, three torso, three tail."""
TEST = 20
"""Test points of each class."""


def longtail(counts: tuple[int, ...] = COUNTS, spread: float = 0.6) -> DataSet:
    """Classes are directions, and their points lie about them."""
    generator = torch.Generator().manual_seed(3)
    centre = torch.nn.functional.normalize(torch.randn(len(counts), 12, generator=generator), dim=1)

    def part(sizes: list[int]) -> Points:
        label = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        points = centre[label] + spread * torch.randn(len(label), 12, generator=generator) / 12**0.5
        return Points(points, Ragged(label.int(), torch.arange(len(label) + 1)), len(sizes))

    return DataSet(
        "long-tail",
        part(list(counts)),
        part([TEST] * len(counts)),
        digest=f"longtail {counts} {spread}",
    )


def pictures(counts: tuple[int, ...] = COUNTS) -> DataSet:
    """The same as small pictures: three colours of 8 × 8 pixels."""
    data = longtail(counts)

    def painted(points: Points) -> Points:
        pixels = (
            points.features @ torch.randn(12, 3 * 8 * 8, generator=torch.Generator().manual_seed(5))
        ) * 60 + 128
        return Points(
            pixels.clamp(0, 255).byte().reshape(-1, 3, 8, 8), points.labels, points.num_labels
        )

    return DataSet(
        "pictures", painted(data.train), painted(data.test), digest=f"pictures {data.digest}"
    )
