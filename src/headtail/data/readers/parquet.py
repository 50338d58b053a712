"""Parquet files: which columns they have, and the ids in these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headtail.data.points import DataSet, Progress
from headtail.data.readers.arrow_types import holds_ids, id_type, is_list, is_string
from headtail.data.readers.vocabulary import Vocabulary
from headtail.data.reading import data_name
from headtail.data.shards import part_of, shards_of
from headtail.errors import HeadtailError

USER = ("user", "userid", "uid", "customer", "customerid")
ITEM = ("item", "itemid", "iid", "product", "productid", "movie", "movieid")
AT_ONCE = 1 << 20
"""Ids held in memory at once."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a Parquet file are for, by name and type.

    Attributes:
        path: the file; of several, the first.
        shards: its files, each with the number of its rows.
        lists: the list column: `items`, else the only one there is.
        user: a column called user, user_id and the like.
        item: a column called item, item_id and the like.
        target: the column `target`.
        names: every column.
        at_once: ids held in memory at once.
    """

    path: Path
    shards: tuple[tuple[Path, int], ...]
    lists: str | None
    user: str | None
    item: str | None
    target: str | None
    names: tuple[str, ...]
    at_once: int

    @classmethod
    def of(cls, path: Path, at_once: int = AT_ONCE) -> Columns:
        """Look at a file, and at the other shards of its part (`shards_of`)."""
        shards = []
        schemas = []
        for shard in shards_of(path):
            with _readable(shard), pq.ParquetFile(shard) as file:
                shards.append((shard, file.metadata.num_rows))
                schemas.append(file.schema_arrow)
        schema = schemas[0]
        path, _ = shards[0]
        for other, (shard, _) in zip(schemas, shards, strict=True):
            if not other.equals(schema):
                raise HeadtailError(
                    f"`{shard}` has other columns than `{path}`, or of other types. Write all "
                    "files of a part with the same columns."
                )
        lists = [field.name for field in schema if is_list(field.type)]
        others = [field.name for field in schema if not is_list(field.type)]
        plain = {name.lower().replace("_", ""): name for name in others}
        return cls(
            path=path,
            shards=tuple(shards),
            lists="items" if "items" in lists else lists[0] if len(lists) == 1 else None,
            user=next((plain[name] for name in USER if name in plain), None),
            item=next((plain[name] for name in ITEM if name in plain), None),
            target="target" if "target" in schema.names else None,
            names=tuple(schema.names),
            at_once=at_once,
        )

    def need_lists(self) -> str:
        """The list column, which must be there."""
        if self.lists is None:
            raise HeadtailError(
                f"`{self.path}` has no list column `items`, only {self.listed}. Write a row per "
                "sequence, its item ids as a list."
            )
        return self.lists

    @property
    def rows(self) -> int:
        """The number of rows in all shards."""
        return sum(rows for _, rows in self.shards)

    @property
    def called(self) -> str:
        """The name of the file; of several, that of their part."""
        return self.path.name if len(self.shards) == 1 else part_of(self.path)

    def at(self, row: int) -> tuple[Path, int]:
        """The file that holds a row, and which row it is there."""
        for path, rows in self.shards:
            if row < rows:
                return path, row
            row -= rows
        raise IndexError(row)

    @property
    def listed(self) -> str:
        """The names of the columns, for errors."""
        return ", ".join(f"`{name}`" for name in self.names) or "no columns"

    def read(
        self, names: list[str], progress: Progress | None = None, rows: int | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of rows of these columns, each with the number of its first row.

        Args:
            names: of the columns.
            progress: called after each batch.
            rows: per batch; None for about `at_once` ids.
        """
        first = 0
        for path, _ in self.shards:
            with _readable(path), pq.ParquetFile(path) as file:
                size = rows or self._rows_at_once(file.metadata, names)
                for batch in file.iter_batches(batch_size=size, columns=names):
                    yield first, batch
                    first += len(batch)
                    if progress:
                        progress(f"reading {path.name}", first / max(self.rows, 1))

    def _rows_at_once(self, about: pq.FileMetaData, names: list[str]) -> int:
        """Rows of these columns that hold about `at_once` ids."""
        paths = [about.schema.column(i).path for i in range(about.num_columns)]
        inside = tuple(f"{name}." for name in names)
        wanted = [i for i, path in enumerate(paths) if path in names or path.startswith(inside)]
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        ids = sum(group.column(i).num_values for group in groups for i in wanted)
        return max(1, about.num_rows * self.at_once // max(ids, 1))

    def ids(
        self, array: pa.Array, column: str, first: int, *, or_null: pa.DataType | None = None
    ) -> pa.Array:
        """Item or user ids as int64 or strings.

        Args:
            array: of the column.
            column: its name.
            first: the row of its first id, for errors.
            or_null: if ids may be missing, the type that a column of nulls gets.
        """
        kind = id_type(array.type)
        if or_null is not None and pa.types.is_null(kind):
            return array.cast(or_null)
        if not holds_ids(kind):
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds {kind}, but ids must be whole numbers or "
                "strings. Cast the column first."
            )
        if array.null_count and or_null is None:
            path, row = self.at(first + _first_null(array))
            raise HeadtailError(
                f"`{path}`, column `{column}`: row {row:,} (from 0) is null. Drop it, or write an "
                "id."
            )
        try:
            return array.cast(pa.large_string() if is_string(kind) else pa.int64())
        except pa.ArrowInvalid as error:
            raise HeadtailError(
                f"`{self.path}`, column `{column}` has ids above int64. Write them as strings."
            ) from error

    def ragged_ids(self, array: pa.Array, column: str, first: int) -> tuple[pa.Array, np.ndarray]:
        """Ids of a list column, one list after the other, and the `[n + 1]` offsets of lists."""
        if not is_list(array.type):
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds {array.type}, but must hold lists of item "
                "ids."
            )
        if array.null_count:
            path, row = self.at(first + _first_null(array))
            raise HeadtailError(
                f"`{path}`, column `{column}`: row {row:,} (from 0) is null. Write a list, which "
                "may be empty."
            )
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(array.value_lengths().to_numpy(), out=offsets[1:])
        values = array.flatten()
        if values.null_count:
            inside = int(np.searchsorted(offsets, _first_null(values), side="right")) - 1
            path, row = self.at(first + inside)
            raise HeadtailError(
                f"`{path}`, column `{column}`: the list of row {row:,} (from 0) has a null in it. "
                "Drop it."
            )
        return self.ids(values, column, first), offsets


def renamed(data: DataSet, *paths: Path | None) -> DataSet:
    """Data from these files, training first, with their short name and notes on shards."""
    read = [path for path in paths if path is not None]
    numbers = {part_of(path): len(shards_of(path)) for path in read}
    notes = [
        f"{part} is in {number:,} files, which are read in their order."
        for part, number in numbers.items()
        if number > 1
    ]
    name = data_name(read[0], part_of(read[0]))
    return replace(data, name=name, notes=(*data.notes, *notes))


def hub_names(path: Path, column: str) -> list[str] | None:
    """The names of the labels 0, 1, … of a column, where a hub has noted them in the file."""
    with _readable(path), pq.ParquetFile(path) as file:
        noted = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(noted)["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if named else None


def check_same_kind(known: Vocabulary, values: pa.Array, columns: Columns, column: str) -> None:
    """Refuse numbers where training has strings, and the reverse: nothing would ever match."""
    if values.type != known.names.type:
        held, trained = (
            "strings" if is_string(kind) else "numbers" for kind in (values.type, known.names.type)
        )
        raise HeadtailError(
            f"`{columns.path}`, column `{column}` holds {held}, but training has {trained}. Write "
            "both in the same way."
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises about a file into one sentence."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise HeadtailError(f"`{path}` is not a file. Name a Parquet file.") from error
    except (pa.ArrowException, OSError) as error:
        raise HeadtailError(
            f"`{path}` is not a readable Parquet file; it may be cut short. Write or copy it again."
        ) from error


def _first_null(array: pa.Array) -> int:
    return int(array.is_null().to_numpy(zero_copy_only=False).argmax())
