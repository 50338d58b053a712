"""What a trained model knows of its training data, so that other rows can be read for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import Bag, ragged_rows
from headtail.data.histories import Histories
from headtail.data.image_files import ImageFiles
from headtail.data.points import Points
from headtail.errors import HeadtailError

if TYPE_CHECKING:
    from headtail.data.tables.vocabulary import Vocabulary

Kind = Literal["histories", "users", "sparse", "dense", "images"]
"""What the features of a model are."""


class Users(NamedTuple):
    """The users that a model knows, and the items that each had in training."""

    names: list[str] | list[int]
    had: Ragged


@dataclass(frozen=True)
class Known:
    """What a model knows of its training data.

    Attributes:
        kind: of its features.
        num_features: D.
        num_labels: L.
        label_names: names of the labels, which are the items too; None where ids are their names.
        users: its users, where a feature is a user.
        relations: its relations, where a point is a head with a relation.
        image_size: height and width of its images.
        feature_names: names of the columns of dense features; None where they have none.
    """

    kind: Kind
    num_features: int
    num_labels: int
    label_names: list[str] | list[int] | None = None
    users: Users | None = None
    relations: list[str] | list[int] | None = None
    image_size: tuple[int, int] | None = None
    feature_names: list[str] | None = None

    @property
    def items(self) -> Vocabulary:
        """The items of training."""
        return vocabulary_of(self.label_names or list(range(self.num_labels)))


def kind_of_features(train: Points) -> Kind:
    """What the features of training points are."""
    if isinstance(train.features, Histories):
        return "histories"
    if train.image_size is not None:
        return "images"
    if isinstance(train.features, Bag):
        one_each = len(train.features.columns) == len(train) == train.num_features
        return "users" if one_each and train.users is not None else "sparse"
    return "dense"


def users_of_training(train: Points) -> Users | None:
    """The users of training points by their features, where features are users."""
    if kind_of_features(train) != "users":
        return None
    assert isinstance(train.features, Bag)
    assert train.users is not None
    order = train.features.columns.long().argsort()
    return Users(train.users.take(order.numpy()).to_pylist(), ragged_rows(train.labels, order))


def vocabulary_of(names: list[str] | list[int]) -> Vocabulary:
    """Names as they were saved, in the order of their ids."""
    import pyarrow as pa

    from headtail.data.tables.vocabulary import Vocabulary

    words = bool(names) and isinstance(names[0], str)
    return Vocabulary(pa.array(names, pa.large_string() if words else pa.int64()))


def unlabelled(features: Bag | Histories | Tensor | ImageFiles, known: Known) -> Points:
    """Points without labels."""
    nothing = torch.zeros(0, dtype=torch.int32)
    offsets = torch.zeros(len(features) + 1, dtype=torch.int64)
    return Points(features, Ragged(nothing, offsets), known.num_labels)


def dense_rows(features: Tensor, known: Known, path: str | Path) -> Points:
    """Dense rows of the width that the model knows."""
    if features.dim() != 2 or features.shape[1] != known.num_features:
        raise HeadtailError(
            f"The features of `{path}` have the shape {list(features.shape)}, but the model has "
            f"{known.num_features:,} features. Pass [N, {known.num_features}]."
        )
    if not bool(features.isfinite().all()):
        row, column = (~features.isfinite()).nonzero()[0].tolist()
        raise HeadtailError(
            f"`{path}`: row {row:,} (from 0), feature {column:,} is missing or not finite. Fix or "
            "drop it."
        )
    return unlabelled(features.float(), known)


def left_out(unknown: int, total: int, what: str) -> list[str]:
    """A note, if something is unknown to the model."""
    if not unknown:
        return []
    return [f"{unknown:,} of {total:,} {what} that never occurs in training and are left out."]
