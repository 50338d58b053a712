"""The law of gaps as `experiments/advice_tables.py` fitted and wrote it; do not edit."""

from __future__ import annotations

from headtail.machine.gap_law import GapLaw

LAW = GapLaw(
    coefficients=(-3.141, -0.876, 1.106, 0.387),
    spread=(0.316, 2.969),
    shares={
        "softmax": {
            "batch": {
                "head": (-1.841, -0.116, 0.565),
                "torso": (-0.58, 0.095, 1.337),
                "tail": (-1.003, 0.005, 2.019),
            },
            "fixed": {
                "head": (-1.505, 0.021, 1.524),
                "torso": (-3.933, -0.037, 0.721),
                "tail": (-2.956, -0.582, 0.937),
            },
        },
        "logit-adjusted": {
            "batch": {
                "head": (-3.801, -0.451, 1.581),
                "torso": (-2.578, 0.272, 1.234),
                "tail": (-1.661, -0.026, 2.494),
            },
            "fixed": {
                "head": (0.187, 1.113, 2.694),
                "torso": (-0.391, 0.106, 3.008),
                "tail": (-1.595, -0.352, -0.046),
            },
        },
    },
    lowest=1.0,
    highest=673.0,
    typical=2.06,
    sources=9,
    regret=0.23,
)
