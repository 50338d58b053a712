"""What decoupled losses learn: the score of a label that costs least, found by looking at all of
them.
"""

from __future__ import annotations

import math

import pytest
import torch

from headtail.functional import contrastive, hinge, logistic, squared_hinge

SCORES = torch.linspace(-12, 12, 2_400_001, dtype=torch.float64)
LEARNT = {
    "logistic": (logistic, lambda p, n: math.log(p / n)),
    "squared hinge": (squared_hinge, lambda p, n: (p - n) / (p + n)),
    "contrastive": (contrastive(), lambda p, n: p / (p + n)),
    "hinge": (hinge, lambda p, n: 1.0 if p > n else -1.0),
}


@pytest.mark.parametrize("piece", LEARNT)
@pytest.mark.parametrize("rho", [0.16, 1.0, 7.0])
@pytest.mark.parametrize("p", [0.005, 0.3, 0.9])
def test_the_score_that_costs_least_is_known(piece, p, rho):
    pieces, wanted = LEARNT[piece]
    pushed = rho * (1 - p)
    cost = p * pieces.positive(SCORES) + pushed * pieces.negative(-SCORES)
    assert float(SCORES[cost.argmin()]) == pytest.approx(wanted(p, pushed), abs=1.1e-5)
