"""Parquet files of items: which columns they have, their ids and the vocabulary these make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headtail.data.cache import Entry, Store
from headtail.data.points import Progress
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
    """

    path: Path
    shards: tuple[tuple[Path, int], ...]
    lists: str | None
    user: str | None
    item: str | None
    target: str | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> Columns:
        """Look at a file, and at the others of its part where that is written in several
        (`shards_of`).
        """
        shards = []
        schemas = []
        for one in shards_of(path):
            with _told(one), pq.ParquetFile(one) as file:
                shards.append((one, file.metadata.num_rows))
                schemas.append(file.schema_arrow)
        schema = schemas[0]
        path, _ = shards[0]
        for other, (one, _) in zip(schemas, shards, strict=True):
            if not other.equals(schema):
                raise HeadtailError(
                    f"`{one}` has other columns than `{path}`, or of other types. Write all files "
                    "of a part alike."
                )
        lists = [field.name for field in schema if _is_list(field.type)]
        plain = {
            field.name.lower().replace("_", ""): field.name
            for field in schema
            if not _is_list(field.type)
        }
        return cls(
            path=path,
            shards=tuple(shards),
            lists="items" if "items" in lists else lists[0] if len(lists) == 1 else None,
            user=next((plain[name] for name in USER if name in plain), None),
            item=next((plain[name] for name in ITEM if name in plain), None),
            target="target" if "target" in schema.names else None,
            names=tuple(schema.names),
        )

    def need_lists(self) -> str:
        """The list column, which must be there."""
        if self.lists is None:
            raise HeadtailError(
                f"`{self.path}` has no list column `items`, only {self.listed}. Write a row a "
                "sequence, its item ids as a list."
            )
        return self.lists

    @property
    def rows(self) -> int:
        """How many there are."""
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
        """The columns' names in words."""
        return ", ".join(f"`{name}`" for name in self.names) or "no columns"

    def read(
        self, names: list[str], progress: Progress | None = None, rows: int | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of these columns, a batch at a time (of `rows`, or as many as is fit), each with the
        number of its first row.
        """
        first = 0
        for path, _ in self.shards:
            with _told(path), pq.ParquetFile(path) as file:
                for batch in file.iter_batches(
                    batch_size=rows or _rows_at_once(file.metadata, names), columns=names
                ):
                    yield first, batch
                    first += len(batch)
                    if progress:
                        progress(f"reading {path.name}", first / max(self.rows, 1))

    def ids(
        self, array: pa.Array, column: str, first: int, *, or_null: pa.DataType | None = None
    ) -> pa.Array:
        """Item or user ids as int64 or strings; the row is told where one is missing, unless ids of
        the kind `or_null` may be.
        """
        kind = _kind(array.type)
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
            return array.cast(pa.large_string() if _is_string(kind) else pa.int64())
        except pa.ArrowInvalid as error:
            raise HeadtailError(
                f"`{self.path}`, column `{column}` has ids above int64. Write them as strings."
            ) from error

    def ragged_ids(self, array: pa.Array, column: str, first: int) -> tuple[pa.Array, np.ndarray]:
        """Ids of a list column, one list after the other, and the `[n + 1]` offsets of the lists."""
        if not _is_list(array.type):
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds {array.type}, but must hold lists of item "
                "ids."
            )
        if array.null_count:
            path, row = self.at(first + _first_null(array))
            raise HeadtailError(
                f"`{path}`, column `{column}`: row {row:,} (from 0) is null. Write a list, empty "
                "if need be."
            )
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(array.value_lengths().to_numpy(), out=offsets[1:])
        values = array.flatten()
        if values.null_count:
            path, row = self.at(
                first + int(np.searchsorted(offsets, _first_null(values), side="right")) - 1
            )
            raise HeadtailError(
                f"`{path}`, column `{column}`: the list of row {row:,} (from 0) has a null in it. "
                "Drop it."
            )
        return self.ids(values, column, first), offsets


@dataclass(frozen=True)
class Vocabulary:
    """Names in order, each once; the id of a name is its place.

    >>> Vocabulary.of([pa.array([30, 10]), pa.array([20, 10])]).ids(pa.array([10, 99, 30]))
    array([ 0, -1,  2], dtype=int32)
    """

    names: pa.Array

    @classmethod
    def of(cls, parts: Iterable[pa.Array]) -> Vocabulary:
        """Every name that occurs, sorted: numbers by size, strings by their bytes."""
        found: pa.Array | None = None
        for part in parts:
            found = (
                part.unique()
                if found is None
                else pa.concat_arrays([found, part.unique()]).unique()
            )
        if found is None:
            return cls(pa.array([], pa.int64()))
        return cls(found.sort())

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, values: pa.Array) -> np.ndarray:
        """`[n]` int32 ids, −1 for names that are not in it."""
        return pc.index_in(values, value_set=self.names).fill_null(-1).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]

    def keep(self, which: np.ndarray) -> Vocabulary:
        """Only these names (`[L]` booleans)."""
        return Vocabulary(self.names.filter(pa.array(which)))

    def save(self, store: Store) -> None:
        """Into a cache entry; the numbers 0 … L − 1 are their own names and need no saving."""
        if not (
            pa.types.is_integer(self.names.type)
            and np.array_equal(self.names.to_numpy(), np.arange(len(self)))
        ):
            save_ids(store, "names", self.names)


def label_names(entry: Entry) -> list[str] | list[int] | None:
    """The names that `Vocabulary.save` saved: numbers where the source has numbers."""
    names = saved_ids(entry, "names")
    return None if names is None else names.to_pylist()


def hub_names(path: Path, column: str) -> list[str] | None:
    """What a hub calls the labels 0, 1, … of a column, from what it notes in the file; None where
    it notes nothing.
    """
    with _told(path), pq.ParquetFile(path) as file:
        noted = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(noted)["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return (
        names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
    )


def save_ids(store: Store, name: str, ids: pa.Array) -> None:
    """Append ids to a cache entry: numbers as they are, strings as their lengths and their bytes."""
    if pa.types.is_integer(ids.type):
        store.append(name, ids.to_numpy())
        return
    # of a slice, its own part of the bytes only
    ids = pa.concat_arrays([ids.cast(pa.large_string())])
    ends, text = ids.buffers()[1:]
    ends = (
        np.frombuffer(ends, np.int64)[ids.offset : ids.offset + len(ids) + 1]
        if len(ids)
        else np.zeros(1, np.int64)
    )
    store.append(f"{name}_lengths", np.diff(ends))
    store.append(name, np.frombuffer(text or b"", np.uint8)[ends[0] : ends[-1]])


def saved_ids(entry: Entry, name: str) -> pa.Array | None:
    """The ids that `save_ids` saved, or None."""
    if name not in entry.arrays:
        return None
    data = entry.arrays[name].numpy()
    if f"{name}_lengths" not in entry.arrays:
        return pa.array(data)
    ends = np.r_[0, np.cumsum(entry.arrays[f"{name}_lengths"].numpy())]
    return pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))


def check_same_kind(known: Vocabulary, values: pa.Array, columns: Columns, column: str) -> None:
    """Refuse numbers where training has strings, and the reverse: nothing would ever match."""
    if values.type != known.names.type:
        words = {True: "strings", False: "numbers"}
        found = words[_is_string(values.type)]
        trained = words[_is_string(known.names.type)]
        raise HeadtailError(
            f"`{columns.path}`, column `{column}` holds {found}, but training has {trained}. Write "
            "both alike."
        )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns what pyarrow raises about a file into a sentence."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise HeadtailError(f"`{path}` is no file. Name a Parquet file.") from error
    except (pa.ArrowException, OSError) as error:
        raise HeadtailError(
            f"`{path}` is not a readable Parquet file; it may be cut short. Write or copy it again."
        ) from error


def _first_null(array: pa.Array) -> int:
    return int(array.is_null().to_numpy(zero_copy_only=False).argmax())


def _rows_at_once(about: pq.FileMetaData, names: list[str]) -> int:
    paths = [about.schema.column(i).path for i in range(about.num_columns)]
    wanted = [
        i
        for i, path in enumerate(paths)
        if any(path == name or path.startswith(f"{name}.") for name in names)
    ]
    ids = sum(
        about.row_group(group).column(i).num_values
        for group in range(about.num_row_groups)
        for i in wanted
    )
    return max(1, about.num_rows * AT_ONCE // max(ids, 1))


def holds_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type names things: whole numbers or strings."""
    return pa.types.is_integer(_kind(kind)) or _is_string(_kind(kind))


def _kind(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_string(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
