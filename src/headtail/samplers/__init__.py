"""Samplers: where the negatives come from, and how likely each was (q)."""

from headtail.core.draw import Draw, every_label
from headtail.samplers.claims import Claims
from headtail.samplers.fixed.frequency import Frequency
from headtail.samplers.fixed.given import Given
from headtail.samplers.fixed.log_uniform import LogUniform
from headtail.samplers.fixed.mixture import Mixture
from headtail.samplers.fixed.queue import Queue
from headtail.samplers.fixed.uniform import Uniform
from headtail.samplers.fixed.within_batch import WithinBatch
from headtail.samplers.interfaces import FixedSampler, ModelSampler
from headtail.samplers.model.adversarial import Adversarial
from headtail.samplers.model.block import Block
from headtail.samplers.model.hard import Hard
from headtail.samplers.model.kernel import FourierKernel, QuadraticKernel
from headtail.samplers.model.resampled import Resampled
from headtail.samplers.model.softmax import ModelSoftmax
from headtail.samplers.model.tilted import Tilted
from headtail.samplers.sampler import Sampler, Step
from headtail.samplers.scorer import Scorer

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
