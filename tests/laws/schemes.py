"""Every weighting and every margin, for the laws to run over."""

from __future__ import annotations

import torch

from headtail import (
    Adaptive,
    Constant,
    CustomSeparable,
    Equalised,
    FromMargin,
    Importance,
    InfoNCE,
    LogitAdjusted,
    Pairwise,
    Relative,
    Tail,
    Unit,
)

from .worlds import LABELS, L

MARGINS = {
    "unit": Unit(),
    "logit-adjusted": LogitAdjusted(LABELS),
    "logit-adjusted, strength 0.4": LogitAdjusted(LABELS, 0.4),
    "equalised": Equalised(LABELS),
    "equalised with a square root": Equalised(LABELS, torch.sqrt),
    "adaptive": Adaptive(LABELS),
    "custom": CustomSeparable(torch.linspace(-1, 1, L), torch.tensor([0.3, -2.0, 0.0, 1.0])),
    "pairwise": Pairwise(lambda y, other: 0.3 * (y - other) ** 2 - 0.1 * y),
}
WEIGHTINGS = {
    "constant": Constant(),
    "importance": Importance(),
    "relative": Relative(),
    "infonce": InfoNCE(),
    "tail": Tail(LABELS),
    "tail, strength 0.5": Tail(LABELS, 0.5),
    **{f"from {name}": FromMargin(margin) for name, margin in MARGINS.items()},
}
