"""The labels of one rank, from those that a caller has whole or counted on all ranks."""

from __future__ import annotations

import torch

from headtail.collectives.ranks import Ranks
from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels import Labels
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.errors import HeadtailError, check_kind
from headtail.files.checksums import new_checksum
from headtail.losses import Loss
from headtail.losses.of_head import check_loss
from headtail.samplers.fixed.frequency import Frequency
from headtail.samplers.fixed.queue import Queue
from headtail.samplers.fixed.within_batch import WithinBatch

Counted = Frequency | WithinBatch | Queue
"""Samplers whose q follows labels of their own, which may be others than the head's."""


def own_labels(
    labels: Labels | ShardedLabels,
    loss: Loss,
    sparse: bool,
    ranks: Ranks,
    placement: Placement | None = None,
) -> tuple[ShardedLabels, str]:
    """This rank's part of labels that fit the loss, and a digest of the counts, those that samplers
    follow included, that all ranks have.
    """
    check_loss(loss, labels, sparse)
    if isinstance(labels, ShardedLabels):
        if placement is not None and labels.placement != placement:
            raise HeadtailError(
                "`labels` are placed otherwise than the rows of this head. Count them with "
                f"`count_labels(…, placement=head.placement.grow({placement.grown[-1]}))`."
            )
        share = labels.share
        wanted = labels.placement.share(ranks.rank, ranks.size)
        if (share.start, share.stop) != (wanted.start, wanted.stop):
            raise HeadtailError(
                f"`labels` are those of rows {share.start:,} to {share.stop:,}, but rank "
                f"{ranks.rank} of {ranks.size} holds {wanted.start:,} to {wanted.stop:,}. Make "
                "them with `headtail.distributed.count_labels` on the same ranks."
            )
        return labels, _digest(labels, loss)
    check_kind("labels", labels, Labels, "Labels.from_counts(counts)")
    placement = Placement((labels.num_labels,)) if placement is None else placement
    part = ShardedLabels.part_of(labels, placement.share(ranks.rank, ranks.size))
    return part, _digest(labels, loss)


def labels_of(sampler: Counted, own: ShardedLabels) -> ShardedLabels:
    """This rank's part of the labels that a sampler follows. Where they are the head's, these are
    returned, so that equal counts are held once.

    Args:
        sampler: of all labels.
        own: the head's.
    """
    labels: LabelFrequencies = sampler.labels
    if isinstance(labels, ShardedLabels):
        if labels.share != own.share:
            raise HeadtailError(
                f"`{sampler.name}` has `labels` whose rows are not those of this head. Make the "
                "sampler with the labels of the head."
            )
        return labels
    if not isinstance(labels, Labels):
        raise HeadtailError(
            f"`{sampler.name}` has `labels` that are counted while they are used, by each rank for "
            "itself. Make the sampler with `labels.fixed()`."
        )
    part = ShardedLabels.part_of(labels, own.share)
    return own if _same(part, own) else part


def _same(part: ShardedLabels, own: ShardedLabels) -> bool:
    """Whether a rank has the same part of the same distribution in both."""
    here, there = (
        (labels.counts.dtype, labels.counts.device, labels.smoothing, labels.totals)
        for labels in (part, own)
    )
    return here == there and torch.equal(part.counts, own.counts)


def _digest(labels: Labels | ShardedLabels, loss: Loss) -> str:
    """One text for counts that must be the same on all ranks: those of the head and of samplers."""
    every: list[LabelFrequencies] = [labels]
    every += [module.labels for module in loss.modules() if isinstance(module, Counted)]
    # Most often they are one object, whose counts are read once.
    words = {id(counted): _in_words(counted) for counted in every}
    return " ".join(words[id(counted)] for counted in every)


def _in_words(labels: LabelFrequencies) -> str:
    if isinstance(labels, ShardedLabels):
        return f"{labels.totals} {labels.smoothing}"
    if not isinstance(labels, Labels):
        return type(labels).__name__  # which `labels_of` refuses
    digest = new_checksum()
    digest.update(labels.counts.cpu().contiguous().numpy().data)
    return f"{digest.hexdigest()} {labels.smoothing}"
