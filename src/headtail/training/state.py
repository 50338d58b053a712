"""How far a run has come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class State:
    """How far a run has come; saved with every checkpoint.

    Attributes:
        epoch: epochs completed.
        step: steps completed in the current epoch.
        loss_sum: of the current epoch's steps.
        first_loss: of the first step; a run that diverges is recognised by comparison with it.
        best: the best validation value so far; lower is better.
        best_epoch: epochs completed when it was reached.
        curve: (epoch, metric, value) in the order of measurement.
        finished: whether training is over.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    first_loss: float | None = None
    best: float = math.inf
    best_epoch: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    finished: bool = False


Watch = Callable[[State, int, float | None], None]
"""Called regularly with the state, the steps per epoch and the mean loss of the latest steps, which
is None at the end of an epoch.
"""
