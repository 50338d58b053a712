"""Label counts from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np

from headtail.core.labels import Labels
from headtail.errors import HeadtailError, need

Counted: TypeAlias = tuple[np.ndarray, list[str] | None]
"""Counts, and the names of labels that are not ids."""


def read_counts(path: Path, smoothing: float = 0.0) -> Labels:
    """Read how often each label occurs, from a `.npy` array, text or Parquet.

    Text has one number per line, label 0 first, or `label,count` lines; labels that are ids may
    then come in any order. A first line without a number is a header. A `.parquet` file has a
    column `count`, and may have a column `label`. Labels that are not ids are the names.
    """
    if not path.is_file():
        raise HeadtailError(
            f"`{path}` is not a file of counts. Write a `.npy` array or a text file with one count "
            "per line."
        )
    read = {".npy": _from_npy, ".parquet": _from_parquet}.get(path.suffix, _from_text)
    counts, names = read(path)
    try:
        return Labels.from_counts(counts, smoothing, names)
    except HeadtailError as error:
        raise HeadtailError(f"{path}: ", error.sentence) from error


def _from_npy(path: Path) -> Counted:
    try:
        counts = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise HeadtailError(
            f"{path} is not a readable `.npy` array of numbers. Save it with `numpy.save(path, "
            "counts)`."
        ) from error
    if counts.dtype.kind not in "iuf":
        raise HeadtailError(
            f"{path} holds {counts.dtype}, not numbers. Save an integer array of counts."
        )
    if counts.ndim != 1:
        raise HeadtailError(
            f"{path} holds an array of shape {list(counts.shape)}. Save one count per label."
        )
    return counts if counts.dtype.kind in "iu" else counts.astype(np.float64), None


def _from_parquet(path: Path) -> Counted:
    need("pyarrow", extra="data", to="Reading Parquet files")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise HeadtailError(
            f"{path} is not a readable Parquet file; it may be cut short. Write or copy it again."
        ) from error
    names = table.column_names
    column = "count" if "count" in names else names[0] if len(names) == 1 else None
    kind = None if column is None else table.schema.field(column).type
    if kind is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        held = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise HeadtailError(
            f"{path} holds {held}, but needs a column `count` of numbers, and may have a column "
            "`label`."
        )
    if table[column].null_count or ("label" in names and table["label"].null_count):
        raise HeadtailError(
            f"{path} has rows without a count or without a label. Drop them, or write 0."
        )
    labels = [str(name) for name in table["label"].to_pylist()] if "label" in names else []
    counts = table[column].to_numpy()
    return _in_label_order(
        path, labels, counts.astype(np.int64 if counts.dtype.kind in "iu" else np.float64)
    )


def _from_text(path: Path) -> Counted:
    names: list[str] = []
    counts: list[float] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.replace(",", " ").replace("\t", " ").split()
                if not fields:
                    continue
                if len(fields) > 2:
                    raise HeadtailError(
                        f"{path}, line {number}: expected a count, or a label and its count, but "
                        f"found {len(fields)} fields."
                    )
                try:
                    counts.append(float(fields[-1]))
                except ValueError as error:
                    if number == 1:  # a header
                        continue
                    raise HeadtailError(
                        f"{path}, line {number}: expected a count, but found {fields[-1][:40]!r}."
                    ) from error
                names += fields[:-1]
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"{path} is not text. Write one count per line, or save an array with `numpy.save`."
        ) from error
    if not counts:
        raise HeadtailError(f"{path} holds no counts. Write one number per line, label 0 first.")
    array, named = _in_label_order(path, names, np.array(counts))
    whole = np.isfinite(array).all() and (array == np.round(array)).all()
    return array.astype(np.int64) if whole else array, named


def _in_label_order(path: Path, names: list[str], counts: np.ndarray) -> Counted:
    """Counts by label id where labels are ids; labels with other names keep the file's order."""
    if not names:
        return counts, None
    if not all(name.isdigit() for name in names):
        return counts, names
    ids = np.array([int(name) for name in names])
    if len(ids) != len(counts) or not np.array_equal(np.sort(ids), np.arange(len(counts))):
        raise HeadtailError(
            f"{path}: in `label,count` lines, each label id from 0 to {len(counts) - 1} must occur "
            "once."
        )
    ordered = np.empty_like(counts)
    ordered[ids] = counts
    return ordered, None
