"""Samplers: where the negatives come from, and how likely each was (q)."""

from headtail.samplers.adversarial import Adversarial
from headtail.samplers.block import Block
from headtail.samplers.claims import Claims
from headtail.samplers.draw import Draw, every_label
from headtail.samplers.frequency import Frequency
from headtail.samplers.given import Given
from headtail.samplers.hard import Hard
from headtail.samplers.interfaces import FixedSampler, ModelSampler
from headtail.samplers.kernel import FourierKernel, QuadraticKernel
from headtail.samplers.log_uniform import LogUniform
from headtail.samplers.mixture import Mixture
from headtail.samplers.model import ModelSoftmax
from headtail.samplers.queue import Queue
from headtail.samplers.resampled import Resampled
from headtail.samplers.sampler import Sampler, Step
from headtail.samplers.scorer import Scorer
from headtail.samplers.tilted import Tilted
from headtail.samplers.uniform import Uniform
from headtail.samplers.within_batch import WithinBatch

__all__ = [
    "Adversarial",
    "Block",
    "Claims",
    "Draw",
    "FixedSampler",
    "FourierKernel",
    "Frequency",
    "Given",
    "Hard",
    "LogUniform",
    "Mixture",
    "ModelSampler",
    "ModelSoftmax",
    "QuadraticKernel",
    "Queue",
    "Resampled",
    "Sampler",
    "Scorer",
    "Step",
    "Tilted",
    "Uniform",
    "WithinBatch",
    "every_label",
]
