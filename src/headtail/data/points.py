"""Points: features and ragged labels, as every reader returns them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.core.html import frame, sentences, table
from headtail.core.offsets import check_offsets
from headtail.core.targets import Ragged
from headtail.data.bag import Bag, join_bags, join_ragged, ragged_rows
from headtail.data.histories import Histories, join_histories
from headtail.data.image_files import ImageFiles
from headtail.data.progress import Progress  # noqa: F401 (imported from here)
from headtail.data.text_features import TextFeatures
from headtail.errors import HeadtailError, check_ids

if TYPE_CHECKING:
    import pyarrow as pa

Features: TypeAlias = Bag | Tensor
"""The input of an encoder: sparse rows, a dense float32 matrix `[n, D]`, items in order `[n, T]`,
or images, uint8 `[n, 3, h, w]`.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Points:
    """Examples with any number of labels each.

    Lengths are compared when points are made. `check` also looks at ids: training, comparing and
    evaluating call it first, and `load` does for objects in memory.

    Attributes:
        features: sparse or dense rows, histories, images, or image files: one per point.
        labels: the labels of each point; a point may have none.
        num_labels: L.
        seen: labels that must not be recommended again to a point (what a user has already), or
            None.
        rows: `[n]` the row of each point in its source, from 0; None where point i is row i.
        users: the name of each point's user in the source, numbers or strings, where it has users.
        times: when each point's label was, as in the source, where it has times.
        known: all right answers of each point, wherever they are recorded (training, validation and
            test), or None. Those other than the one that is ranked are removed from the ranking
            (filtered ranking, as for triples).
    """

    features: Features | Histories | ImageFiles
    labels: Ragged
    num_labels: int
    seen: Ragged | None = None
    rows: Int64[Tensor, " n"] | None = None
    users: pa.Array | None = None
    known: Ragged | None = None
    times: pa.Array | None = None
    _checked: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.features)
        sizes = {"labels": len(self.labels.offsets) - 1}
        for name, ragged in (("seen", self.seen), ("known", self.known)):
            if ragged is not None:
                sizes[name] = len(ragged.offsets) - 1
        for name in ("rows", "users", "times"):
            if (of_points := getattr(self, name)) is not None:
                sizes[name] = len(of_points)
        for name, size in sizes.items():
            if size != n:
                raise HeadtailError(
                    f"`features` has {n:,} points, but `{name}` has {size:,}. Make them equal."
                )

    def __len__(self) -> int:
        return len(self.features)

    def check(self) -> None:
        """Refuse labels, columns, items and offsets that are out of range: one pass over all of
        them, the first time.
        """
        if not self._checked:
            self.check_questions()
            self._check_ids("labels", "known")
            object.__setattr__(self, "_checked", True)

    def check_questions(self) -> None:
        """As `check`, for all but the right answers, which may be labels that a model lacks."""
        if isinstance(self.features, Bag | Histories):
            self.features.check()
        self._check_ids("seen")

    def _check_ids(self, *names: str) -> None:
        for name in names:
            ragged = getattr(self, name)
            if ragged is not None:
                check_ids(f"{name}.values", ragged.values, self.num_labels)
                check_offsets(f"{name}.offsets", ragged.offsets, len(ragged.values))

    def __repr__(self) -> str:
        sizes = f"{self.num_features:,} features, {self.num_labels:,} labels"
        return f"Points({len(self):,} points, {sizes}, {self.num_pairs:,} pairs)"

    @property
    def num_features(self) -> int:
        """D; for images, their pixels in three colours."""
        if isinstance(self.features, Bag | Histories):
            return self.features.num_columns
        if isinstance(self.features, ImageFiles):
            return 3 * self.features.size**2
        return self.features.shape[1:].numel()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that a model sees; None for other features."""
        if isinstance(self.features, ImageFiles):
            return self.features.size, self.features.size
        shape = self.features.shape if isinstance(self.features, Tensor) else ()
        return (shape[2], shape[3]) if len(shape) == 4 else None

    @property
    def num_pairs(self) -> int:
        """Number of (point, label) pairs."""
        return len(self.labels.values)

    def select(self, ids: Int64[Tensor, " k"]) -> Points:
        """These points, in this order."""
        features = self.features
        return replace(
            self,
            features=features[ids] if isinstance(features, Tensor) else features.rows(ids),
            labels=ragged_rows(self.labels, ids),
            seen=None if self.seen is None else ragged_rows(self.seen, ids),
            rows=ids if self.rows is None else self.rows[ids],
            users=None if self.users is None else self.users.take(ids.numpy()),
            known=None if self.known is None else ragged_rows(self.known, ids),
            times=None if self.times is None else self.times.take(ids.numpy()),
        )

    def as_bags(self) -> Points:
        """With histories as bags, for encoders that do not look at the order."""
        features = self.features
        return replace(self, features=features.bag()) if isinstance(features, Histories) else self


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """What a reader returns.

    Attributes:
        name: short, for tables.
        train: to learn from.
        test: to measure on.
        validation: to stop on; None lets training hold out a part of `train`.
        label_names: the name of each label in the source, or None if ids are its names.
        notes: sentences about the data that a user should see.
        digest: changes with the content.
        unlabelled: rows of the test part without a label that training knows, where they are not in
            `test`: a model answers them, but nothing can be measured on them.
        whole: every row of the source, where it has no test part and `test` was held out of them;
            or None.
        read_as: the path of the data and the options they were read with, by the names of the
            options; `content` is a digest of the files alone, where these are all of the data.
        items: the features of each label, for a model with a second tower; or None.
        text: how raw texts became features, where the points were texts; or None.
        relations: the names of relations, where points are a head with a relation; or None.
        feature_names: the names of the columns of dense features, where they have names; or None.
    """

    name: str
    train: Points
    test: Points
    validation: Points | None = None
    label_names: list[str] | list[int] | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""
    unlabelled: Points | None = None
    whole: Points | None = None
    read_as: dict[str, Any] = field(default_factory=dict)
    text: TextFeatures | None = None
    items: Bag | None = None
    relations: list[str] | list[int] | None = None
    feature_names: list[str] | None = None

    @property
    def parts(self) -> dict[str, Points]:
        """The points by the names of their parts."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: points for name, points in parts.items() if points is not None}

    def check(self) -> None:
        """Check all points, and refuse parts that count features or labels differently."""
        whole = {**self.parts, "unlabelled": self.unlabelled, "whole": self.whole}
        sizes = (self.train.num_features, self.train.num_labels)
        for name, points in whole.items():
            if points is None:
                continue
            if (points.num_features, points.num_labels) != sizes:
                raise HeadtailError(
                    f"`{name}` has {points.num_features:,} features and {points.num_labels:,} "
                    f"labels, but `train` {sizes[0]:,} and {sizes[1]:,}. Make them equal."
                )
            points.check()
        if self.items is not None:
            self.items.check()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(points):,} points" for name, points in self.parts.items())
        return f"DataSet({self.name}: {sizes}; {self._sizes})"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        rows = [
            [name, f"{len(points):,}", f"{points.num_pairs:,}"]
            for name, points in self.parts.items()
        ]
        body = table(["part", "points", "labels of points"], rows)
        return frame("DataSet", f"{self.name}: {self._sizes}", body, sentences(self.notes))

    @property
    def _sizes(self) -> str:
        return f"{self.train.num_features:,} features, {self.train.num_labels:,} labels"

    @property
    def asked(self) -> Points:
        """Every row of the test part, with or without a label, in the order of the source."""
        return self.test if self.unlabelled is None else _in_order(self.test, self.unlabelled)


def _in_order(first: Points, second: Points) -> Points:
    """The sparse points of both, by their rows."""
    assert first.rows is not None
    assert second.rows is not None
    seen = known = users = None
    if first.seen is not None and second.seen is not None:
        seen = join_ragged(first.seen, second.seen)
    if first.known is not None and second.known is not None:
        known = join_ragged(first.known, second.known)
    if first.users is not None:
        import pyarrow as pa

        users = pa.concat_arrays([first.users, second.users])
    if isinstance(first.features, Histories) and isinstance(second.features, Histories):
        features = join_histories(first.features, second.features)
    else:
        assert isinstance(first.features, Bag)
        assert isinstance(second.features, Bag)
        features = join_bags(first.features, second.features)
    labels = join_ragged(first.labels, second.labels)
    rows = torch.cat([first.rows, second.rows])
    both = Points(features, labels, first.num_labels, seen, rows, users, known)
    return both.select(rows.argsort(stable=True))
