"""Which points are trained on and which are held out, and the label distribution of the former."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.core.columns import Names
from headtail.core.labels import Labels
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Ragged
from headtail.data.bag import ragged_rows
from headtail.data.points import DataSet, Points
from headtail.distributed.counting import counted

MOST_VALIDATION = 2000
"""Points that are enough to choose an epoch; with many labels, more would cost more than the epoch
itself.
"""


class Split(NamedTuple):
    """What is trained on, and what is held out.

    Attributes:
        train: the training points, without labels that are held out.
        among: ids of the points to train on; None for all.
        held_out: the held-out points, or None.
    """

    train: Points
    among: Tensor | None
    held_out: Points | None


def split_validation(data: DataSet, share: float) -> Split:
    """The data set's own validation points, or a random share that is the same for every run.

    Points from one row of the source (the prefixes of a session) are held out together. Where
    points are users that are tested again later, one of a user's labels is held out, and not the
    user: one that was not trained on could not be tested.

    Args:
        data: the data set.
        share: of the training points, at most `MOST_VALIDATION` of them.
    """
    train = data.train
    nothing = Split(train, None, None)
    if share == 0:
        return nothing
    generator = torch.Generator().manual_seed(0)
    if data.validation is not None:
        few = torch.randperm(len(data.validation), generator=generator)[:MOST_VALIDATION]
        held_out = data.validation.select(few.sort().values)
        return nothing if held_out.num_pairs == 0 else Split(train, None, held_out)
    count = min(MOST_VALIDATION, round(share * len(train)))
    if count == 0 or count >= len(train):
        return nothing
    if data.test.seen is not None:
        return _without_labels(train, count, generator)
    out = torch.zeros(len(train), dtype=torch.bool)
    out[_random_points(train, count, generator)] = True
    held_out = train.select(out.nonzero().squeeze(1))
    if held_out.num_pairs == 0 or bool(out.all()):
        return nothing
    return Split(train, (~out).nonzero().squeeze(1), held_out)


def _random_points(points: Points, count: int, generator: torch.Generator) -> Int64[Tensor, " k"]:
    """Ids of so many points; fewer where the next row of the source would not fit in whole."""
    if points.rows is None or bool((points.rows.diff() != 0).all()):
        return torch.randperm(len(points), generator=generator)[:count]
    _, row, sizes = points.rows.unique_consecutive(return_inverse=True, return_counts=True)
    order = torch.randperm(len(sizes), generator=generator)
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    taken[order] = sizes[order].cumsum(0) <= count
    return taken[row].nonzero().squeeze(1)


def _without_labels(users: Points, count: int, generator: torch.Generator) -> Split:
    """One label each of so many points is held out; of those with two labels or more."""
    offsets = users.labels.offsets
    lengths = offsets.diff()
    several = (lengths > 1).nonzero().squeeze(1)
    several = several[torch.randperm(len(several), generator=generator)[:count]].sort().values
    if len(several) == 0:
        return Split(users, None, None)
    at = (torch.rand(len(several), generator=generator) * lengths[several]).long()
    out = torch.zeros(users.num_pairs, dtype=torch.bool)
    out[offsets[several] + at] = True
    lengths = lengths.index_add(0, several, torch.full_like(several, -1))
    kept = Ragged(users.labels.values[~out], torch.cat([offsets[:1], lengths.cumsum(0)]))
    train = replace(users, labels=kept)
    one_each = Ragged(users.labels.values[out], torch.arange(len(several) + 1))
    asked = train.select(several)
    return Split(train, None, replace(asked, labels=one_each, seen=asked.labels))


def training_labels(
    train: Points,
    among: Tensor | None = None,
    smoothing: float | None = None,
    names: Names | None = None,
) -> Labels:
    """The label distribution of the points that are trained on.

    Args:
        train: all training points.
        among: ids of those that are trained on; None for all.
        smoothing: pseudo-count per label; None for 1 if some label never occurs, else 0.
        names: of the labels, or None.
    """
    values = (train.labels if among is None else ragged_rows(train.labels, among)).values
    counts = torch.bincount(values.long(), minlength=train.num_labels)
    if smoothing is None:
        smoothing = 1.0 if bool((counts == 0).any()) else 0.0
    return Labels.from_counts(counts, smoothing, names)


def training_labels_of_ranks(
    train: Points, among: Tensor | None, smoothing: float | None, ranks: Ranks
) -> ShardedLabels:
    """The same, where each rank counts a part of the points and keeps the counts of its own labels.
    Every rank must call it.

    Args:
        train: all training points.
        among: ids of those that are trained on; None for all.
        smoothing: pseudo-count per label; None for 1 if some label never occurs, else 0.
        ranks: who share the labels.
    """
    if among is None:
        seen = train.labels.values.tensor_split(ranks.size)[ranks.rank]
    else:
        seen = ragged_rows(train.labels, among.tensor_split(ranks.size)[ranks.rank]).values
    labels = counted(seen.long(), Placement((train.num_labels,)), ranks, smoothing or 0.0)
    if smoothing is None and labels.never_seen:
        return ShardedLabels(labels.counts, labels.share, labels.totals, smoothing=1.0)
    return labels
