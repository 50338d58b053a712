"""Losses: the equations as functions, and modules that hold a sampler and a weighting, or a margin.

`softmax.py` and `decoupled.py` are the equations, public as `headtail.functional`; `modules.py` has
the classes. How negatives are drawn belongs in `samplers`, what a loss does to head and tail in
`implicit`, and compiled twins in `kernels`.
"""

from headtail.losses.modules import (
    DecoupledLoss,
    ExactLoss,
    Loss,
    SampledDecoupledLoss,
    SampledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
)

__all__ = [
    "DecoupledLoss",
    "ExactLoss",
    "Loss",
    "SampledDecoupledLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SoftmaxLoss",
]
