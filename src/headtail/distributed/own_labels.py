"""The labels of one rank, from those that a caller has whole or counted on all ranks."""

from __future__ import annotations

from headtail.collectives.ranks import Ranks
from headtail.core.labels import Labels
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.errors import HeadtailError, check_kind
from headtail.files.checksums import new_checksum
from headtail.losses import Loss
from headtail.losses.of_head import check_loss


def own_labels(
    labels: Labels | ShardedLabels,
    loss: Loss,
    sparse: bool,
    ranks: Ranks,
    placement: Placement | None = None,
) -> tuple[ShardedLabels, str]:
    """This rank's part of labels that fit the loss, and a digest of counts that all ranks have."""
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
        return labels, ""
    check_kind("labels", labels, Labels, "Labels.from_counts(counts)")
    placement = Placement((labels.num_labels,)) if placement is None else placement
    part = ShardedLabels.part_of(labels, placement.share(ranks.rank, ranks.size))
    digest = new_checksum()
    digest.update(labels.counts.cpu().contiguous().numpy().data)
    return part, digest.hexdigest()
