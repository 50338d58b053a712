"""Labels counted by several ranks, each of which keeps the counts of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels, Totals
from headtail.core.targets import IGNORE_INDEX, Pairs, Target
from headtail.errors import check_count, check_ids, check_num_labels

AT_ONCE = 2**22
"""Different labels that a rank sends at a time."""


def count_labels(
    target: Target,
    num_labels: int,
    mesh: Any = None,
    *,
    smoothing: float = 0.0,
    placement: Placement | None = None,
) -> ShardedLabels:
    """Count the targets of all ranks, each of which passes its own part of the data. No rank ever
    holds the counts of all labels. Every rank must call it.

    Args:
        target: `[N]` ids, padded `[N, k]` ids or a `Ragged`: this rank's training targets.
        num_labels: L.
        mesh: the ranks, as for `ShardedLabelHead`.
        smoothing: pseudo-count added to every label in the prior.
        placement: of the rows of a head that has grown, or is about to grow by n labels:
            `head.placement.grow(n)`.
    """
    ranks = Ranks.of(mesh)
    if placement is None:
        placement = Placement((check_count("num_labels", num_labels),))
    check_num_labels("placement", placement.num_labels, "`num_labels` is", num_labels)
    pairs = Pairs.of(target, num_labels=num_labels, ignore_index=IGNORE_INDEX)
    seen = pairs.label[~pairs.ignored]
    check_ids("target", seen, num_labels)
    return counted(seen, placement, ranks, smoothing)


def counted(seen: Tensor, placement: Placement, ranks: Ranks, smoothing: float) -> ShardedLabels:
    """The counts of this rank's labels in what all ranks have seen."""
    share = placement.share(ranks.rank, ranks.size)
    ids, numbers = seen.cpu().unique(return_counts=True)
    counts = torch.zeros(len(share), dtype=torch.int64)
    sent = torch.stack([ids, numbers], 1)
    lengths = [length for (length,) in ranks.numbers([len(sent)], torch.device("cpu"))]
    place = ranks.meeting_place(sent.device)  # NCCL reaches no CPU
    for start in range(0, max(lengths), AT_ONCE):
        sizes = [min(max(length - start, 0), AT_ONCE) for length in lengths]
        part = sent[start : start + AT_ONCE]
        every = gather_rows(part.to(place), ranks, sizes).to(part.device)
        places = share.own_places(every[:, 0])
        own = places >= 0
        counts.index_add_(0, places[own], every[own, 1])
    return with_totals(counts, placement, ranks, smoothing)


def with_totals(
    counts: Tensor, placement: Placement, ranks: Ranks, smoothing: float
) -> ShardedLabels:
    """Labels from the whole counts of this rank's own labels."""
    share = placement.share(ranks.rank, ranks.size)
    own = Totals.of(counts)
    lowest = int(own.lowest) if len(counts) else torch.iinfo(torch.int64).max
    numbers = ranks.numbers([int(own.total), lowest, own.never_seen], torch.device("cpu"))
    totals = Totals.joined([Totals(float(n), float(low), never) for n, low, never in numbers])
    return ShardedLabels(counts, share, totals, smoothing)
