"""Which points are trained on and which are held out, and the label distribution of the former."""

from __future__ import annotations

import torch
from torch import Tensor

from headtail.core.labels import Labels
from headtail.data.bag import ragged_rows
from headtail.data.points import DataSet, Points

MOST_VALIDATION = 2000
"""Points that are enough to choose an epoch; with many labels, more would cost more than the epoch
itself.
"""


def split_validation(data: DataSet, share: float) -> tuple[Tensor | None, Points | None]:
    """Ids of the points to train on (None for all), and the held-out points.

    These are the data set's own, or a random share that is the same for every run. Where points are
    users that are tested again later, none is held out: a user that was not trained on could not be
    tested.
    """
    generator = torch.Generator().manual_seed(0)
    if share == 0 or (data.validation is None and data.test.seen is not None):
        return None, None
    if data.validation is not None:
        few = torch.randperm(len(data.validation), generator=generator)[:MOST_VALIDATION]
        held_out = data.validation.select(few.sort().values)
        return None, None if held_out.num_pairs == 0 else held_out
    count = min(MOST_VALIDATION, round(share * len(data.train)))
    if count == 0 or count >= len(data.train):
        return None, None
    order = torch.randperm(len(data.train), generator=generator)
    held_out = data.train.select(order[:count].sort().values)
    return (None, None) if held_out.num_pairs == 0 else (order[count:].sort().values, held_out)


def training_labels(
    train: Points, among: Tensor | None = None, smoothing: float | None = None
) -> Labels:
    """The label distribution of the points that are trained on.

    Args:
        train: all training points.
        among: ids of those that are trained on; None for all.
        smoothing: pseudo-count per label; None for 1 if some label never occurs, else 0.
    """
    values = (train.labels if among is None else ragged_rows(train.labels, among)).values
    counts = torch.bincount(values.long(), minlength=train.num_labels)
    if smoothing is None:
        smoothing = 1.0 if bool((counts == 0).any()) else 0.0
    return Labels.from_counts(counts, smoothing)
