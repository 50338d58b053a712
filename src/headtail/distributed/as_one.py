"""What all ranks optimise together, as one process sees it."""

from __future__ import annotations

from headtail.core.placement import Placement
from headtail.losses import SampledLoss
from headtail.samplers.fixed.mixture import Mixture
from headtail.samplers.fixed.queue import Queue
from headtail.samplers.fixed.stratified import Stratified, check_sampler
from headtail.samplers.fixed.within_batch import WithinBatch
from headtail.samplers.sampler import Sampler


def as_one(loss: SampledLoss, ranks: int, placement: Placement | None = None) -> SampledLoss:
    """A loss with the q that a `ShardedLabelHead` draws with, for `explain` and `audit`.

    Args:
        loss: of the sharded head, over whole `Labels`.
        ranks: how many there are.
        placement: of the labels' rows; by default that of a table that has not grown.

    >>> from headtail import Importance, Labels, SampledSoftmaxLoss, Uniform
    >>> loss = SampledSoftmaxLoss(Uniform(Labels.zipf(100), 8), Importance())
    >>> as_one(loss, ranks=4).sampler.name
    'Stratified'
    """
    sampler = _as_one(loss.sampler, ranks, placement)
    return type(loss)(sampler, loss.weighting, **loss.again())


def _as_one(sampler: Sampler, ranks: int, placement: Placement | None) -> Sampler:
    if isinstance(sampler, WithinBatch | Queue):
        return sampler  # ranks take them from the joint batch, as one process would
    if isinstance(sampler, Mixture):
        return Mixture([_as_one(part, ranks, placement) for part in sampler.samplers])
    return Stratified(check_sampler(sampler), ranks, placement)
