"""Samplers: where the negatives come from, and how likely each was (q)."""

from headtail.samplers.draw import Draw, every_label
from headtail.samplers.frequency import Frequency
from headtail.samplers.given import Given
from headtail.samplers.log_uniform import LogUniform
from headtail.samplers.mixture import Mixture
from headtail.samplers.queue import Queue
from headtail.samplers.sampler import Sampler, Step
from headtail.samplers.uniform import Uniform
from headtail.samplers.within_batch import WithinBatch

__all__ = [
    "Draw",
    "Frequency",
    "Given",
    "LogUniform",
    "Mixture",
    "Queue",
    "Sampler",
    "Step",
    "Uniform",
    "WithinBatch",
    "every_label",
]
