"""How far a run has come."""

from __future__ import annotations

import math
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
