"""Labelled points with columns of numbers, or a column of lists of numbers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import DataSet, Points, Progress
from headtail.data.reading import Reading
from headtail.data.split import with_test_part
from headtail.data.tables.arrow_types import is_list
from headtail.data.tables.columns import Columns, DataTables, check_same_kind, renamed
from headtail.data.tables.vocabulary import Vocabulary, label_names
from headtail.errors import HeadtailError, Setting


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read tables of labelled numbers as `reading` says.

    Labels are whole numbers, strings, or lists of them, and get ids in their order. A test row may
    lack a label, or have one that training does not know: it is answered, but not measured.
    """
    files = list(tables.parts.values())
    chosen = [tables.train.roles.label, list(tables.train.roles.features)]
    recipe = {"reader": "table of numbers", "columns": chosen, "parts": list(tables.parts)}
    entry = cached(files, recipe, partial(_build, tables, progress))
    points = {name: _points(entry, name) for name in tables.parts}
    notes = ["Read as dense features.", tables.train.note(["label", "features"])]
    if unknown := entry.facts["unknown"]:
        notes.append(
            f"{unknown:,} labels of test or validation rows never occur in training and are left "
            "out."
        )
    points, whole, mark, held = with_test_part(points, reading.holdout, "rows")
    names = label_names(entry)
    data = DataSet(
        tables.train.table.title,
        points["train"],
        points["test"],
        points.get("validation"),
        label_names=_hub_names(tables.train, entry, names),
        notes=(*notes, *held),
        digest=key_of(files, recipe) + mark,
        whole=whole,
        feature_names=_feature_names(tables.train),
    )
    return renamed(data, tables)


def _hub_names(
    columns: Columns, entry: Entry, names: list[str] | list[int] | None
) -> list[str] | list[int] | None:
    """The names that a hub has for the numbers 0, 1, …, where these are all the labels."""
    words = columns.hub_names(columns.roles.label or "")
    fits = names is None and words is not None and len(words) == entry.facts["num_labels"]
    return words if fits else names


def _feature_names(columns: Columns) -> list[str] | None:
    """The names of the columns of numbers; None where a number or a list is all they have."""
    names = list(columns.roles.features)
    listed = is_list(columns.kind(names[0]))
    return None if listed or all(name.isdigit() for name in names) else names


def _build(tables: DataTables, progress: Progress | None, store: Store) -> None:
    label, features = _columns(tables.train)
    labels = Vocabulary.of(
        _ids(tables.train, batch, label, first)[0]
        for first, batch in tables.train.read([label], progress)
    )
    if not len(labels):
        raise HeadtailError(
            f"`{tables.train.path}`, column `{label}` holds no label at all, so there is nothing "
            "to learn."
        )
    labels.save(store)
    store.facts |= {"num_labels": len(labels), "unknown": 0, "width": None}
    for name, columns in tables.parts.items():
        lacking = label not in columns.names and name == "test"
        wanted = [*features] if lacking else [*features, label]
        check_columns(columns, wanted)
        for first, batch in columns.read(wanted, progress):
            numbers = numbers_of(columns, batch, features, first, store.facts["width"])
            store.facts["width"] = numbers.shape[1]
            store.append(f"{name}_features", numbers)
            lengths = np.zeros(len(batch), np.int64)
            if not lacking:
                values, offsets = _ids(columns, batch, label, first, may_lack=name == "test")
                check_same_kind(labels, values, columns, label)
                ids = labels.ids(values)
                row = np.arange(len(batch)).repeat(np.diff(offsets))
                store.facts["unknown"] += int((ids < 0).sum())
                store.append(f"{name}_labels", ids[ids >= 0])
                lengths = np.bincount(row[ids >= 0], minlength=len(batch))
            else:
                store.append(f"{name}_labels", np.empty(0, np.int32))
            store.append(f"{name}_lengths", lengths)


def check_columns(columns: Columns, wanted: list[str]) -> None:
    """Refuse a table without some of the columns of training."""
    missing = [name for name in wanted if name not in columns.names]
    if missing:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}, but not "
            f"{', '.join(f'`{name}`' for name in missing)}, which training has. Add or rename "
            "columns so that they are named as in training."
        )


def _columns(columns: Columns) -> tuple[str, list[str]]:
    """The column of labels and those of features, which must be there."""
    roles = columns.roles
    for role in ("label", "features"):
        if not getattr(roles, role):
            raise HeadtailError(
                f"`{columns.path}` has the columns {columns.listed}, and none of them is for "
                f"{role}. Name it with ",
                Setting(role),
                ".",
            )
    return roles.label or "", list(roles.features)


def _ids(
    columns: Columns, batch: pa.RecordBatch, label: str, first: int, may_lack: bool = False
) -> tuple[pa.Array, np.ndarray]:
    """Labels one row after the other, and the offsets of rows."""
    array = batch.column(label)
    if is_list(array.type):
        return columns.ragged_ids(array, label, first)
    if may_lack:
        lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        return columns.ids(array.drop_null(), label, first), np.r_[0, np.cumsum(lengths)]
    return columns.ids(array, label, first), np.arange(len(array) + 1)


def numbers_of(
    columns: Columns, batch: pa.RecordBatch, features: list[str], first: int, width: int | None
) -> np.ndarray:
    """`[n, D]` float32 features; what is missing or not finite is refused.

    Args:
        columns: of the table.
        batch: rows of it.
        features: the columns of numbers, or the one of lists of numbers.
        first: the number of the first row.
        width: how many numbers a list must hold; None for as many as the first one.
    """
    listed = is_list(columns.kind(features[0]))
    if listed:
        array = batch.column(features[0])
        lengths = array.value_lengths().fill_null(0).to_numpy()
        width = width or int(lengths[0])
        if (bad := np.flatnonzero(lengths != width)).size:
            _refuse(columns, features[0], first + int(bad[0]), f"is not a list of {width} numbers")
        numbers = array.flatten().cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
        numbers = numbers.reshape(len(batch), width)
    else:
        for name in features:
            kind = columns.kind(name)
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise HeadtailError(
                    f"`{columns.path}`, column `{name}` holds {kind}, but features must be "
                    "numbers. Name others with ",
                    Setting("features"),
                    ".",
                )
        arrays = [batch.column(name).cast(pa.float32(), safe=False) for name in features]
        numbers = np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)
    if (bad := np.argwhere(~np.isfinite(numbers))).size:
        row, column = bad[0]
        which = [] if listed else sorted({*bad[:, 1].tolist()} - {int(column)})
        others = ", ".join(f"`{features[place]}`" for place in which)
        name = features[0 if listed else column]
        also = f" (so are values of {others})" if others else ""
        _refuse(columns, name, first + int(row), f"is missing or not finite{also}")
    return numbers


def _refuse(columns: Columns, column: str, row: int, problem: str) -> None:
    name, inside = columns.at(row)
    raise HeadtailError(
        f"`{name}`, column `{column}`: row {inside:,} (from 0) {problem}. Fix or drop it."
    )


def _points(entry: Entry, name: str) -> Points:
    lengths = entry.arrays[f"{name}_lengths"]
    labels = Ragged(entry.arrays[f"{name}_labels"], _offsets(lengths))
    return Points(entry.arrays[f"{name}_features"], labels, entry.facts["num_labels"])


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
