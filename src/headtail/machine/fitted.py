"""The law of gaps as `experiments/advice_tables.py` fitted and wrote it; do not edit."""

from __future__ import annotations

from headtail.machine.gap_law import GapLaw

LAW = GapLaw(
    coefficients=(-3.25, -0.91, 0.991, 0.435),
    spread=(0.313, 3.178),
    shares={
        "softmax": {
            "batch": {
                "head": (-1.857, -0.111, 0.491),
                "torso": (-0.587, 0.097, 1.344),
                "tail": (-0.886, 0.01, 2.073),
            },
            "fixed": {
                "head": (-1.78, 0.105, 1.437),
                "torso": (-3.422, -0.036, 0.814),
                "tail": (-3.157, -0.578, 0.952),
            },
        },
        "logit-adjusted": {
            "batch": {
                "head": (-3.624, -0.457, 1.458),
                "torso": (-2.639, 0.249, 1.561),
                "tail": (-1.515, -0.029, 2.731),
            },
            "fixed": {
                "head": (0.152, 1.145, 3.007),
                "torso": (-0.386, 0.111, 3.567),
                "tail": (-1.825, -0.36, -0.018),
            },
        },
    },
    lowest=1.0,
    highest=236.0,
    typical=2.09,
    sources=9,
    regret=0.25,
)
