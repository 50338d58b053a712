"""Head, torso and tail of a data set."""

from __future__ import annotations

from headtail.core.slices import SliceRule, Slices
from headtail.data.facts import label_counts, task_of
from headtail.data.points import DataSet

__all__ = ["SliceRule", "data_slices"]


def data_slices(data: DataSet, rule: SliceRule = "auto") -> Slices:
    """Head, torso and tail by the training pairs of each label.

    Args:
        data: the data set.
        rule: "mass" (each slice holds about a third of the pairs), "count" (head: at least 100
            examples per label, tail: fewer than 20), or "auto": by count for classification,
            otherwise by mass.
    """
    return Slices.by(rule, label_counts(data), classification=task_of(data) == "classification")
