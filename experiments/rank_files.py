"""What a bootstrap over test points needs of a run, in one byte per test pair.

A run keeps the rank of every right label, from 1 to 50, or 0 where it is not among the first 50.
Every metric of a ranking at any k up to 50, of any slice, follows from these and from the *frame*
of a data set, which is stored once: the points, labels, slices and training counts behind the
ranks, and the session or user of each point.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stats.resample import Floats, Ints
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.slices import NAMES, Slices
from headtail.data.bag import Bag
from headtail.data.catalogue import recognise
from headtail.data.facts import label_counts
from headtail.data.histories import Histories
from headtail.data.points import DataSet, Points
from headtail.files.atomic import replace_file
from headtail.metrics import Ranked, Ratio, inverse_propensity, ndcg, precision, psp, recall

DEEPEST = 50
ERRORS = {"balanced-error": 1}
"""Metrics that are the mean over labels of their own misses among the first k."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The test pairs of a data set.

    Attributes:
        point: `[p]` the point of each pair, in ascending order.
        label: `[p]` its label, ascending within a point.
        group: `[n]` the session or user of each point: what a bootstrap draws.
        of_label: `[L]` 0 for head, 1 for torso, 2 for tail.
        counts: `[L]` training pairs of each label.
        about: `[3]` training points, and A and B of the propensity model.
    """

    point: Ints
    label: Ints
    group: Ints
    of_label: Ints
    counts: Ints
    about: Floats

    @classmethod
    def of(cls, data: DataSet, slices: Slices) -> Frame:
        """The frame of a data set."""
        known = recognise(data.train.num_features, data.train.num_labels)
        a, b = (0.55, 1.5) if known is None else known.propensity
        nothing = torch.full((len(data.test), 1), -1)
        ranked = Ranked.of(nothing, data.test.labels, data.test.num_labels)
        return cls(
            ranked.point.numpy(),
            ranked.label.numpy(),
            groups_of(data.test),
            slices.of_label.cpu().long().numpy(),
            label_counts(data).cpu().long().numpy(),
            np.array([len(data.train), a, b], dtype=np.float64),
        )

    def save(self, path: Path) -> None:
        """To a compressed file, with the smallest integers that hold the numbers."""
        arrays = asdict(self)
        small = {n: x.astype(np.min_scalar_type(x.max(initial=0))) for n, x in arrays.items()}
        _save(path, **(small | {"about": self.about}))

    @classmethod
    def read(cls, path: Path) -> Frame:
        """From a file."""
        with np.load(path) as arrays:
            given = {field.name: arrays[field.name] for field in fields(cls)}
        about = given.pop("about")
        return cls(**{name: x.astype(np.int64) for name, x in given.items()}, about=about)

    def ranks_of(self, top: Tensor) -> np.ndarray:
        """`[p]` uint8 ranks of the right labels in `[n, K]` best labels, 0 beyond the first 50."""
        place = np.zeros(len(self.point), dtype=np.uint8)
        rows = top[:, :DEEPEST].cpu().numpy()
        for k in range(rows.shape[1] - 1, -1, -1):  # the best place last
            place[rows[self.point, k] == self.label] = k + 1
        return place

    def ratio(self, ranks: np.ndarray, metric: str, slice_: str = "full") -> tuple[Floats, Floats]:
        """What each point adds above and below to a metric: recall@k, precision@k, psp@k, ndcg@k
        or balanced-error.
        """
        point, label, inside = self._pairs[slice_]
        rank = torch.from_numpy(ranks[inside].astype(np.float64))
        rank[rank == 0] = torch.inf
        found = self._ratio(Ranked(point, label, rank, len(self.group), slice_), metric)
        return found.numerator.numpy(), found.denominator.numpy()

    @cached_property
    def _pairs(self) -> dict[str, tuple[Tensor, Tensor, np.ndarray]]:
        """Points and labels of the pairs in each slice, and which pairs these are."""
        of_pair = self.of_label[self.label]
        insides = {"full": np.ones(len(of_pair), dtype=bool)}
        insides |= {name: of_pair == i for i, name in enumerate(NAMES)}
        return {
            name: (torch.from_numpy(self.point[i]), torch.from_numpy(self.label[i]), i)
            for name, i in insides.items()
        }

    def value(self, ranks: np.ndarray, metric: str, slice_: str = "full") -> float:
        """The metric on all points; nan for an empty slice."""
        above, below = self.ratio(ranks, metric, slice_)
        return float(above.sum() / below.sum()) if below.sum() else float("nan")

    def _ratio(self, part: Ranked, metric: str) -> Ratio:
        if metric in ERRORS:
            own = torch.bincount(part.label, minlength=len(self.counts)).double()[part.label]
            missed = part.per_point((1 - part.hit(ERRORS[metric])) / own)
            return Ratio(metric, part.slice, missed, part.per_point(1 / own))
        name, _, k = metric.partition("@")
        if name == "psp":
            points, a, b = self.about.tolist()
            train = Labels.from_counts(torch.from_numpy(self.counts))
            return psp(part, inverse_propensity(train, int(points), (a, b)), int(k))
        return {"recall": recall, "precision": precision, "ndcg": ndcg}[name](part, int(k))


def save_ranks(path: Path, ranks: np.ndarray) -> None:
    """The ranks of a run, compressed."""
    _save(path, ranks=ranks)


def read_ranks(path: Path) -> np.ndarray:
    """The ranks of a run."""
    with np.load(path) as arrays:
        return arrays["ranks"]


def groups_of(points: Points) -> Ints:
    """The user of each point, or its session, or else all points with the same features.

    The prefixes of a test session are rows of their own in the session data: row i + 1 belongs to
    the session of row i where its items and its label are the items of row i.
    """
    if points.users is not None:
        names = points.users.to_numpy(zero_copy_only=False)
        return np.unique(names, return_inverse=True)[1].astype(np.int64)
    if isinstance(points.features, Histories):
        return _sessions(points)
    return _equal_points(points)


def _equal_points(points: Points) -> Ints:
    """The same number for points with the same sparse features; others are on their own."""
    features = points.features
    if not isinstance(features, Bag):
        return np.arange(len(points), dtype=np.int64)
    offsets = features.offsets.tolist()
    columns, values = features.columns.numpy(), features.values.numpy()
    rows = [slice(*ends) for ends in pairwise(offsets)]
    names = [columns[row].tobytes() + values[row].tobytes() for row in rows]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _sessions(points: Points) -> Ints:
    histories = points.features
    assert isinstance(histories, Histories)
    items = histories.items.tolist()
    begin = histories.offsets[histories.row].tolist()
    end = histories.end.tolist()
    offsets = points.labels.offsets.tolist()
    labels = points.labels.values.tolist()
    group = np.zeros(len(points), dtype=np.int64)
    before: list[int] = []
    for i in range(len(points)):
        history = items[begin[i] : begin[i] + end[i]]
        whole = history + labels[offsets[i] : offsets[i + 1]]
        begins = i > 0 and whole != before
        group[i] = group[i - 1] + begins if i else 0
        before = history
    return group


def _save(path: Path, **arrays: Any) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    replace_file(path, write)
