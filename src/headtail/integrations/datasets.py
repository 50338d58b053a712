"""Columns of Hugging Face data sets: how often each item occurs, and item ids as labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headtail.core.labels import Labels, check_labels
from headtail.core.targets import IGNORE_INDEX, Ragged
from headtail.errors import HeadtailError, nearest, need


def count_items(dataset: Any, column: str, smoothing: float = 0.0) -> Labels:
    """How often each item is a positive: the counts of a column of item ids.

    Args:
        dataset: a `datasets.Dataset` or `IterableDataset`.
        column: holds the id of the positive, a string or a whole number, in every row.
        smoothing: pseudo-count added to every item in the prior.
    """
    return Labels.from_column(_column(dataset, column), smoothing)


def with_item_ids(dataset: Any, column: str | Sequence[str], labels: Labels) -> Any:
    """The data set with item ids as its column `label`, where the trainer passes them to the loss.

    Items that `labels` does not have, as in a test set, are left out of the loss (id −100).

    Args:
        dataset: a `datasets.Dataset` or `IterableDataset`.
        column: of the ids of positives; or a list of columns, first that of the positives, then
            one for each column of hard negatives. They are replaced by `label`.
        labels: what `count_items` counted.
    """
    check_labels(labels)
    columns = [column] if isinstance(column, str) else list(column)
    for name in columns:
        _check_column(dataset, name)
    if "label" in dataset.column_names and "label" not in columns:
        raise HeadtailError(
            "The data set has a column `label` already, which the trainer would pass to the loss. "
            'Write `dataset.remove_columns("label")` first.'
        )

    def ids_of(rows: Any) -> list:
        """`[n]` ids, or `[n, 1 + k]` with those of hard negatives."""
        parts = [_ids(labels, rows(name)) for name in columns]
        return (parts[0] if isinstance(column, str) else torch.stack(parts, dim=1)).tolist()

    if hasattr(dataset, "add_column") and hasattr(dataset, "__len__"):
        ids = ids_of(lambda name: _column(dataset, name))
        return dataset.remove_columns(columns).add_column("label", ids)
    # A stream forgets its features when it is mapped, and the trainer asks for them.
    features = dataset.features and _with_label(dataset.features, columns, isinstance(column, str))
    return dataset.map(
        lambda batch: {"label": ids_of(batch.__getitem__)},
        batched=True,
        remove_columns=columns,
        features=features,
    )


def _with_label(features: Any, columns: list[str], one_per_row: bool) -> Any:
    """The features of a stream with `label` in place of columns of ids."""
    kinds = need("datasets", extra="sentence-transformers", to="Reading a stream")
    whole = kinds.Value("int64")
    kept = {name: kind for name, kind in features.items() if name not in columns}
    return kinds.Features(kept | {"label": whole if one_per_row else [whole]})


def _check_column(dataset: Any, column: str) -> None:
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list):
        raise HeadtailError(
            f"`dataset` must be a datasets.Dataset with columns, but got {type(dataset).__name__}. "
            'Write for example `dataset["train"]`.'
        )
    if column not in names:
        listed = ", ".join(f"`{name}`" for name in names)
        raise HeadtailError(
            f"`{column}` is not a column of the data set, which has {listed}."
            f"{nearest(column, names)}"
        )


def _column(dataset: Any, column: str) -> Any:
    """The values of a column: an Arrow array, or a list where the data set is a stream."""
    _check_column(dataset, column)
    alone = dataset.select_columns([column])
    if hasattr(dataset, "__len__"):
        return alone.with_format("arrow")[:].column(column)
    return [row[column] for row in alone]


def _ids(labels: Labels, column: Any) -> Tensor:
    ids = labels.ids(column, unknown=IGNORE_INDEX)
    if isinstance(ids, Ragged):
        raise HeadtailError("A column of item ids must hold one id per row, but holds lists.")
    return ids
