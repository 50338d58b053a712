"""Numbers over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headtail.errors import HeadtailError


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds, and the sample deviation (n − 1), None for a single seed.

    >>> mean_and_deviation([0.25, 0.75])
    (0.5, 0.3535533905932738)
    >>> mean_and_deviation([0.25])
    (0.25, None)
    """
    if not len(values):
        raise HeadtailError("`values` is empty, so it has no mean. Pass one number per seed.")
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else None
