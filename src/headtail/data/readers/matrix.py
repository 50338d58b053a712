"""Features and labels that are in memory already: matrices of scipy, numpy or torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points
from headtail.data.readers.parsed import MOST
from headtail.data.reading import Reading
from headtail.data.split import with_test_part
from headtail.errors import HeadtailError

Pair: TypeAlias = tuple[Any, Any]
"""Features and labels."""


def read_matrices(
    reading: Reading, train: Pair, test: Pair | None = None, validation: Pair | None = None
) -> DataSet:
    """Points from features and labels.

    Args:
        reading: says which share is held out.
        train: features, a sparse matrix of scipy or a dense one of floats, a row per point; and
            labels: one per point, a list of them per point, or a sparse matrix of scipy with a
            column per label. Whole numbers are ids; strings get ids in their order.
        test: likewise, or None to hold a random share out.
        validation: likewise, or None.
    """
    pairs = {"train": train, "test": test, "validation": validation}
    rows = {name: _rows(pair[1]) for name, pair in pairs.items() if pair is not None}
    names = _names(rows["train"])
    num_labels = _num_labels(rows, names)
    points = {
        name: _points(name, pairs[name], labels, names, num_labels)  # pyright: ignore[reportArgumentType]
        for name, labels in rows.items()
    }
    if not points["train"].num_pairs:
        raise HeadtailError("The data have no label at all, so nothing can be learnt.")
    first = points["train"].num_features
    for name, part in points.items():
        if part.num_features != first:
            raise HeadtailError(
                f"`{name}` has {part.num_features:,} columns of features, but training has "
                f"{first:,}. Make them equal."
            )
    digest = _digest(points, names)
    points, whole, mark, held = with_test_part(points, reading.holdout)
    return DataSet(
        "data",
        points["train"],
        points["test"],
        points.get("validation"),
        label_names=names,
        notes=held,
        digest=digest + mark,
        whole=whole,
    )


def _rows(labels: Any) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Labels one point after the other, how many each point has, and L where it is known."""
    if hasattr(labels, "tocsr"):
        matrix = labels.tocsr()
        matrix.eliminate_zeros()
        return matrix.indices, np.diff(matrix.indptr), matrix.shape[1]
    nested = isinstance(labels, Sequence) and any(
        isinstance(row, Sequence | np.ndarray | Tensor) and not isinstance(row, str)
        for row in labels
    )
    if nested:
        parts = [np.asarray(row) for row in labels]
        filled = [part for part in parts if part.size] or [np.empty(0, np.int64)]
        return np.concatenate(filled), np.array([part.size for part in parts]), None
    values = np.asarray(labels)
    if values.ndim != 1:
        raise HeadtailError(
            f"Labels have shape {list(values.shape)}. Pass one label per point, a list of labels "
            "per point, or a sparse matrix of scipy with a column per label."
        )
    return values, np.ones(len(values), np.int64), None


def _names(rows: tuple[np.ndarray, np.ndarray, int | None]) -> list[str] | None:
    """The names of labels that are not whole numbers."""
    values = rows[0]
    if values.dtype.kind in "iu" or (values.dtype.kind == "f" and (values % 1 == 0).all()):
        return None
    if values.dtype.kind not in "OUS":
        raise HeadtailError(f"Labels are {values.dtype}. Pass whole numbers or strings.")
    return sorted({str(value) for value in values})


def _num_labels(
    rows: dict[str, tuple[np.ndarray, np.ndarray, int | None]], names: list[str] | None
) -> int:
    if names is not None:
        return len(names)
    widths = {width for _, _, width in rows.values() if width is not None}
    if len(widths) > 1:
        raise HeadtailError(
            f"The labels of the parts have different numbers of columns: {sorted(widths)}."
        )
    highest = 1 + max(
        (int(values.max()) for values, _, _ in rows.values() if len(values)), default=-1
    )
    if max([highest, *widths]) > MOST:
        raise HeadtailError(
            f"Labels go up to {max([highest, *widths]) - 1:,}, but ids must be below {MOST:,}. "
            "Number labels from 0."
        )
    return max([highest, *widths])


def _points(
    part: str,
    pair: Pair,
    rows: tuple[np.ndarray, np.ndarray, int | None],
    names: list[str] | None,
    num_labels: int,
) -> Points:
    features = features_of(pair[0])
    values, lengths, _ = rows
    if len(lengths) != len(features):
        raise HeadtailError(
            f"There are {len(features):,} rows of {part} features, but labels of {len(lengths):,} "
            "points. Make them equal."
        )
    if names is not None:
        ids = {name: i for i, name in enumerate(names)}
        numbers = np.array([ids.get(str(value), -1) for value in values], np.int64)
    else:
        numbers = values.astype(np.int64)
        if (numbers < 0).any():
            raise HeadtailError(f"Labels must be at least 0, but got {int(numbers.min())}.")
    known = numbers >= 0
    row = np.arange(len(lengths)).repeat(lengths)[known]
    pairs = np.unique(row * max(1, num_labels) + numbers[known])
    lengths = np.bincount(pairs // max(1, num_labels), minlength=len(features))
    labels = torch.from_numpy((pairs % max(1, num_labels)).astype(np.int32))
    offsets = torch.from_numpy(np.r_[0, np.cumsum(lengths)])
    return Points(features, Ragged(labels, offsets), num_labels)


def features_of(features: Any) -> Bag | Tensor:
    """Rows of features as encoders take them, from a matrix of scipy or a dense one."""
    if hasattr(features, "tocsr"):
        matrix = features.tocsr()
        matrix.sum_duplicates()
        _check_finite(matrix.data)
        return Bag(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data.astype(np.float32)),
            matrix.shape[1],
        )
    dense = np.asarray(features)
    if dense.ndim != 2 or dense.dtype.kind not in "iuf":
        raise HeadtailError(
            f"Features are {dense.dtype} of shape {list(dense.shape)}. Pass a sparse matrix of "
            "scipy, or an array of numbers, with a row per point."
        )
    _check_finite(dense)
    return torch.from_numpy(dense.astype(np.float32))


def _check_finite(values: np.ndarray) -> None:
    """Refuse features that are not numbers; `values` are rows, or all that is in sparse ones."""
    finite = np.isfinite(values)
    if not finite.all():
        where = ""
        if values.ndim == 2:
            row, column = np.argwhere(~finite)[0].tolist()
            where = f", the first in row {row:,}, column {column:,} (from 0)"
        raise HeadtailError(
            f"Features have {int((~finite).sum()):,} values that are NaN or infinite{where}. Fix "
            "or drop them."
        )


def _digest(points: dict[str, Points], names: list[str] | None) -> str:
    content = hashlib.blake2b(repr(names).encode(), digest_size=16)
    for part in points.values():
        features = part.features
        arrays = [part.labels.values, part.labels.offsets]
        if isinstance(features, Bag):
            arrays += [features.offsets, features.columns, features.values]
        elif isinstance(features, Tensor):
            arrays += [features]
        for array in arrays:
            content.update(np.ascontiguousarray(array.numpy()).data)
        content.update(str((part.num_features, part.num_labels)).encode())
    return content.hexdigest()
