"""The law of gaps as `experiments/advice_tables.py` fitted and wrote it; do not edit."""

from __future__ import annotations

from headtail.machine.gap_law import GapLaw

LAW = GapLaw(
    coefficients=(-3.104, -0.86, 1.193, 0.375),
    spread=(0.334, 2.84),
    shares={
        "softmax": {
            "batch": {
                "head": (-2.575, -0.333, 0.591),
                "torso": (-0.385, 0.124, 1.588),
                "tail": (-1.068, 0.019, 1.908),
            },
            "fixed": {
                "head": (-1.31, 0.14, 1.568),
                "torso": (-4.027, -0.181, 0.692),
                "tail": (-2.839, -0.577, 0.285),
            },
        },
        "logit-adjusted": {
            "batch": {
                "head": (-3.777, -0.365, 1.444),
                "torso": (-2.415, 0.315, 1.199),
                "tail": (-1.718, -0.223, 2.449),
            },
            "fixed": {
                "head": (0.229, 1.028, 2.963),
                "torso": (-0.378, 0.117, 2.642),
                "tail": (-1.465, -0.333, 0.026),
            },
        },
    },
    lowest=3.84,
    highest=673.0,
    typical=2.02,
    sources=9,
    regret=0.2,
)
