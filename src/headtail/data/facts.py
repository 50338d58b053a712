"""Facts about a data set: what `headtail stats` shows and a comparison keeps."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.core.slices import NAMES, Slices
from headtail.data.points import Bag, DataSet

CURVE_POINTS = 300
Task = Literal["classification", "retrieval"]


def facts_of(data: DataSet, slices: Slices) -> dict[str, Any]:
    """As JSON: sizes, imbalance, slices and the rank–frequency curve of the training labels."""
    train = data.train
    counts = label_counts(data)
    seen = counts[counts > 0]
    descending = counts.sort(descending=True).values
    of_slice = {name: counts[getattr(slices, name)] for name in NAMES}
    rarest = {name: int(inside.min()) for name, inside in of_slice.items() if len(inside)}
    nnz = (
        len(train.features.columns)
        if isinstance(train.features, Bag)
        else len(train) * train.num_features
    )
    return {
        "name": data.name,
        "task": task_of(data),
        "train_points": len(train),
        "test_points": len(data.test),
        "num_features": train.num_features,
        "picture": None if train.picture is None else list(train.picture),
        "num_labels": train.num_labels,
        "num_pairs": train.num_pairs,
        "test_pairs": data.test.num_pairs,
        "labels_per_point": train.num_pairs / max(1, len(train)),
        "features_per_point": nnz / max(1, len(train)),
        "never_seen": int((counts == 0).sum()),
        "gini": gini(counts),
        "imbalance": int(seen.max()) / int(seen.min()) if len(seen) else None,
        "most": int(descending[0]),
        "median": _median(descending),
        "least": int(descending[-1]),
        "slices": {
            "rule": slices.rule,
            "sizes": slices.sizes,
            "last_rank": {name: int((counts >= least).sum()) for name, least in rarest.items()},
            "rarest": rarest,
            "pairs": {name: int(inside.sum()) for name, inside in of_slice.items()},
        },
        "curve": _curve(descending),
        "notes": list(data.notes),
        "digest": data.digest,
    }


def task_of(data: DataSet) -> Task:
    """Classification, judged by its errors, where points are pictures or vectors with one label
    each; otherwise retrieval.
    """
    of_train, of_test = (part.labels.offsets.diff() for part in (data.train, data.test))
    # what is tested may have none
    one_label = bool((of_train == 1).all()) and bool((of_test <= 1).all())
    return (
        "classification" if one_label and not isinstance(data.train.features, Bag) else "retrieval"
    )


def label_counts(data: DataSet) -> Int64[Tensor, " L"]:
    """`[L]` training pairs of each label."""
    return torch.bincount(data.train.labels.values.long(), minlength=data.train.num_labels)


def gini(counts: Int64[Tensor, " L"]) -> float:
    r"""Gini's coefficient of the label counts: 0 where all are equal, near 1 where a few labels
    hold all examples.

    >>> gini(torch.tensor([5, 5, 5])), gini(torch.tensor([0, 0, 0, 12]))
    (0.0, 0.75)
    """
    ascending = counts.double().sort().values
    rank = torch.arange(1, len(ascending) + 1, dtype=torch.float64)
    total = float(ascending.sum())
    return (
        float(((2 * rank - len(rank) - 1) * ascending).sum()) / (len(rank) * total)
        if total
        else 0.0
    )


def _median(descending: Tensor) -> float:
    """Of an even number of labels, the mean of the two in the middle."""
    length = len(descending)
    return (int(descending[(length - 1) // 2]) + int(descending[length // 2])) / 2


def _curve(descending: Tensor) -> list[list[int]]:
    """[rank, count] at ranks in equal steps of the logarithm."""
    length = len(descending)
    ranks = (
        torch.logspace(0, math.log10(length), CURVE_POINTS, dtype=torch.float64)
        .round()
        .long()
        .clamp(1, length)
        .unique()
    )
    return [[int(rank), int(descending[rank - 1])] for rank in ranks]
