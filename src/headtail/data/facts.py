"""Facts about a data set: what `headtail stats` shows and a comparison keeps."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.core.slices import NAMES, Slices
from headtail.data.bag import Bag
from headtail.data.histories import Histories
from headtail.data.points import DataSet

CURVE_POINTS = 300
LISTED = 3
"""Most and least frequent labels that are listed by name."""
EXAMPLES = 5
"""Labels of each slice that are named."""
Task = Literal["classification", "retrieval"]
Kind = Literal["text", "sequences", "interactions", "dense", "images"]
"""What the features are: sparse rows, the items before an item, a user, vectors, or images."""


def facts_of(data: DataSet, slices: Slices) -> dict[str, Any]:
    """As JSON: sizes, imbalance, slices and the rank–frequency curve of the training labels."""
    train = data.train
    counts = label_counts(data)
    seen = counts[counts > 0]
    descending = counts.sort(descending=True).values
    of_slice = {name: counts[getattr(slices, name)] for name in NAMES}
    rarest = {name: int(inside.min()) for name, inside in of_slice.items() if len(inside)}
    nnz = len(train) * train.num_features
    if isinstance(train.features, Bag):
        nnz = len(train.features.columns)
    elif isinstance(train.features, Histories):
        nnz = train.features.num_entries
    return {
        "name": data.name,
        "task": task_of(data),
        "train_points": len(train),
        "test_points": len(data.test),
        "num_features": train.num_features,
        "image_size": None if train.image_size is None else list(train.image_size),
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
        "most_frequent": _named(data, counts.argsort(descending=True, stable=True)[:LISTED]),
        "least_frequent": _named(data, _rarest_seen(counts)),
        "slices": {
            "rule": slices.rule,
            "sizes": slices.sizes,
            "last_rank": {name: int((counts >= least).sum()) for name, least in rarest.items()},
            "rarest": rarest,
            "pairs": {name: int(inside.sum()) for name, inside in of_slice.items()},
            "examples": {
                name: _named(data, _spread_out(getattr(slices, name), counts)) for name in rarest
            },
        },
        "curve": _curve(descending),
        "notes": list(data.notes),
        "digest": data.digest,
    }


def _named(data: DataSet, labels: Int64[Tensor, " k"]) -> list[list[Any]]:
    """[name, training pairs] of labels; where they have no names, their ids."""
    names = data.label_names or range(data.train.num_labels)
    counts = label_counts(data)
    return [[names[label], int(counts[label])] for label in labels.tolist()]


def _rarest_seen(counts: Int64[Tensor, " L"]) -> Int64[Tensor, " k"]:
    """The rarest labels of those that occur, rarest first."""
    seen = counts.nonzero().squeeze(1)
    return seen[counts[seen].argsort(stable=True)[:LISTED]]


def task_of(data: DataSet) -> Task:
    """Classification, judged by its errors, if points are images or vectors with one label each;
    otherwise retrieval.
    """
    of_train, of_test = (part.labels.offsets.diff() for part in (data.train, data.test))
    # Test points may have no label.
    one_label = bool((of_train == 1).all()) and bool((of_test <= 1).all())
    sparse = isinstance(data.train.features, Bag | Histories)
    return "classification" if one_label and not sparse else "retrieval"


def kind_of(data: DataSet) -> Kind:
    """The kind of data, by the features of its points."""
    features = data.train.features
    if data.train.image_size is not None:
        return "images"
    if isinstance(features, Tensor):
        return "dense"
    if isinstance(features, Histories):
        return "sequences"
    return "text" if data.test.seen is None else "interactions"


def label_counts(data: DataSet) -> Int64[Tensor, " L"]:
    """`[L]` training pairs of each label."""
    return torch.bincount(data.train.labels.values.long(), minlength=data.train.num_labels)


def gini(counts: Int64[Tensor, " L"]) -> float:
    r"""Gini's coefficient of the label counts: 0 if all are equal, near 1 if a few labels have all
    examples.

    >>> gini(torch.tensor([5, 5, 5])), gini(torch.tensor([0, 0, 0, 12]))
    (0.0, 0.75)
    """
    ascending = counts.double().sort().values
    rank = torch.arange(1, len(ascending) + 1, dtype=torch.float64)
    total = float(ascending.sum())
    if not total:
        return 0.0
    return float(((2 * rank - len(rank) - 1) * ascending).sum()) / (len(rank) * total)


def _spread_out(inside: Tensor, counts: Tensor) -> Int64[Tensor, " k"]:
    """A few labels of a slice, from its most frequent to its rarest."""
    ids = inside.nonzero().squeeze(1)
    ranked = ids[counts[ids].argsort(descending=True, stable=True)]
    return ranked[torch.linspace(0, len(ids) - 1, min(EXAMPLES, len(ids))).round().long()]


def _median(descending: Tensor) -> float:
    """The median; for an even number of labels, the mean of the two in the middle."""
    length = len(descending)
    return (int(descending[(length - 1) // 2]) + int(descending[length // 2])) / 2


def _curve(descending: Tensor) -> list[list[int]]:
    """[rank, count] at ranks in equal steps of the logarithm."""
    length = len(descending)
    steps = torch.logspace(0, math.log10(length), CURVE_POINTS, dtype=torch.float64)
    ranks = steps.round().long().clamp(1, length).unique()
    return [[int(rank), int(descending[rank - 1])] for rank in ranks]
