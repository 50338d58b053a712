"""Objects in memory as data: DataFrames, Arrow tables, data sets of Hugging Face, matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtail.data.points import DataSet, Progress
from headtail.data.readers.matrix import read_matrices
from headtail.data.readers.table import reader_of
from headtail.data.reading import Reading
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError, nearest, need

if TYPE_CHECKING:
    from headtail.data.tables.columns import Columns, DataTables

PARTS = {
    "train": ("train",),
    "test": ("test",),
    "validation": ("validation", "valid", "val", "dev"),
}


def is_in_memory(data: Any) -> bool:
    """Whether this is not the path of files."""
    return not isinstance(data, str | Path)


def read_object(
    data: Any,
    test: Any,
    reading: Reading,
    progress: Progress | None,
    trained: Trained | None = None,
) -> tuple[DataSet, set[str]]:
    """The data set in an object, and the options of `reading` that do something to it.

    Args:
        data: a table, several by the names of their parts, or features and labels.
        test: likewise, or None.
        reading: how.
        progress: called with what is being done and the share of it that is done.
        trained: read texts for this model.
    """
    if trained is not None and reading.format == "auto":
        reading = replace(reading, format="raw-text")
    parts = _parts(data, test)
    if isinstance(parts["train"], tuple):
        return _matrices(parts, reading)
    tables = _tables(parts, reading)
    reader = reader_of(tables, reading)
    return reader.read(tables, reading, progress, trained), reader.used(tables, reading)


def _parts(data: Any, test: Any) -> dict[str, Any]:
    """What to train on, test on and validate on, as far as it is there."""
    parts = {"train": data}
    if isinstance(data, Mapping):
        parts = {
            part: data[name] for part, names in PARTS.items() for name in names if name in data
        }
        if "train" not in parts:
            raise HeadtailError(
                f"The data have the parts {', '.join(map(repr, data))}, but `train` is needed."
            )
        known = [name for names in PARTS.values() for name in names]
        for name in data:
            if name not in known:
                raise HeadtailError(
                    f"{name!r} is not a part of data: write `train`, `test` or `validation`."
                    f"{nearest(str(name), known)}"
                )
    return parts if test is None else parts | {"test": test}


def _matrices(parts: dict[str, Any], reading: Reading) -> tuple[DataSet, set[str]]:
    pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in parts.values())
    if not pairs:
        raise HeadtailError(
            "Pass features and labels as a tuple of two, `(features, labels)`, for training "
            "and for `test`."
        )
    used = set() if "test" in parts else {"holdout"}
    return read_matrices(reading, **parts), used


def _tables(parts: dict[str, Any], reading: Reading) -> DataTables:
    need("pyarrow", extra="data", to="Reading tables")
    from headtail.data.tables.columns import DataTables

    columns = {part: _columns(table, part, reading) for part, table in parts.items()}
    return DataTables(**columns)


def _columns(data: Any, part: str, reading: Reading) -> Columns:
    from headtail.data.tables.columns import Columns
    from headtail.data.tables.open import open_table, table_of

    if isinstance(data, str | Path):
        return Columns.of(open_table(Path(data), reading), reading=reading)
    table = table_of(data, "data" if part == "train" else part)
    if table is None:
        raise HeadtailError(
            f"Data of the type {type(data).__name__} cannot be read. Pass a path, a pandas or "
            "polars DataFrame, an Arrow table, a data set of Hugging Face, or features and labels "
            "as `(features, labels)`."
        )
    return Columns.of(table, reading=reading)
