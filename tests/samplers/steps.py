"""Steps to ask samplers about."""

from __future__ import annotations

from torch import Tensor

from headtail.samplers import Scorer, Step


def step_of(model: Scorer, label: Tensor) -> Step:
    """A whole batch of these examples."""
    return Step.expected(label, len(label), model)
