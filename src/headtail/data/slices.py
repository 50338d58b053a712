"""Head, torso and tail of a data set."""

from __future__ import annotations

from typing import Literal

from headtail.core.slices import Slices
from headtail.data.facts import label_counts, task_of
from headtail.data.points import DataSet

SliceRule = Literal["auto", "mass", "count"]


def data_slices(data: DataSet, rule: SliceRule = "auto") -> Slices:
    """Head, torso and tail by the training pairs of each label.

    Args:
        data: the data set.
        rule: "mass" (each slice holds a third of the pairs), "count" (at least 100 and fewer than
            20 examples per label), or "auto": by count for classification, otherwise by mass.
    """
    counts = label_counts(data)
    by_count = task_of(data) == "classification" if rule == "auto" else rule == "count"
    return Slices.by_count(counts) if by_count else Slices.by_mass(counts)
