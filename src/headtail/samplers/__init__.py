"""Where negatives come from, and how likely each was (q); all randomness of the package is here.

`sampler` says what every sampler can do, `interfaces` what the two kinds add, `scorer` how samplers
see the model. `fixed/` holds samplers with one q for all examples, `model/` those that follow the
scores. Weights and losses do not belong here: they only read draws.

To add a sampler, write one file in `fixed/` or `model/` and add one row to `schemes/table.py`.
"""

from headtail.core.draw import Draw, every_label
from headtail.samplers.fixed.frequency import Frequency
from headtail.samplers.fixed.given import Given
from headtail.samplers.fixed.log_uniform import LogUniform
from headtail.samplers.fixed.mixture import Mixture
from headtail.samplers.fixed.partial_fc import PartialFC
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
from headtail.samplers.model.summary import TableSummary
from headtail.samplers.model.tilted import Tilted
from headtail.samplers.sampler import Claims, Sampler, Step
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
    "PartialFC",
    "QuadraticKernel",
    "Queue",
    "Resampled",
    "Sampler",
    "Scorer",
    "Step",
    "TableSummary",
    "Tilted",
    "Uniform",
    "WithinBatch",
    "every_label",
]
