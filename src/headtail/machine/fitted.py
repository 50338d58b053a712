"""The law of gaps as `experiments/advice_tables.py` fitted and wrote it; do not edit."""

from __future__ import annotations

from headtail.machine.gap_law import GapLaw

LAW = GapLaw(
    coefficients=(-3.114, -0.754, 1.27, 0.352),
    spread=(0.325, 3.015),
    shares={
        "softmax": {
            "batch": {
                "head": (-2.192, -0.03, 0.611),
                "torso": (-0.31, 0.053, 1.904),
                "tail": (-1.663, -0.161, 2.076),
            },
            "fixed": {
                "head": (-1.573, 0.163, 1.177),
                "torso": (-4.792, -0.172, 0.756),
                "tail": (-3.102, -0.642, 0.195),
            },
        },
        "logit-adjusted": {
            "batch": {
                "head": (-3.868, -0.444, 1.669),
                "torso": (-2.922, 0.325, 1.239),
                "tail": (-1.639, -0.036, 2.35),
            },
            "fixed": {
                "head": (0.211, 1.338, 2.723),
                "torso": (-0.329, 0.139, 2.677),
                "tail": (-1.506, -0.335, -0.072),
            },
        },
    },
    lowest=3.84,
    highest=673.0,
    typical=2.03,
    sources=9,
    regret=0.15,
)
