"""Parquet, Feather and Arrow files, and tables in memory."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headtail.data.digests import digest
from headtail.data.packed import is_packed, unpacked
from headtail.data.tables.table import Source, in_pieces
from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder
from headtail.files.regular import named_in_utf8


class ParquetSource(Source):
    """A Parquet file, which may also be compressed as a whole."""

    groups: list[int] | None = None
    """The row groups that are read; None for all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.guess = {}
        with self._open() as file:
            self.rows = file.metadata.num_rows
            self.schema = file.schema_arrow

    def pieces(self, rows: int) -> list[Source]:
        """As for `Source`: runs of row groups."""
        if (self.rows or 0) <= rows or is_packed(self.path):
            return [self]
        with self._open() as file:
            about = file.metadata
            sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        pieces: list[ParquetSource] = []
        first = 0
        for number, size in enumerate(sizes):
            if not pieces or (pieces[-1].rows or 0) + size > rows:
                pieces.append(copy(self))
                pieces[-1].groups, pieces[-1].rows, pieces[-1].first = [], 0, first
            piece = pieces[-1]
            piece.groups = [*(piece.groups or ()), number]
            piece.rows = (piece.rows or 0) + size
            first += size
        return list(pieces)

    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """As for `Source`."""
        with self._open() as file:
            size = _rows_at_once(file.metadata, columns, at_once)
            done = 0
            for batch in file.iter_batches(size, self.groups, columns):
                done += len(batch)
                yield batch, done / max(1, self.rows or 0)

    def digest(self) -> str:
        """As for `Source`."""
        return digest(self.path)

    def files(self) -> list[Path]:
        """As for `Source`."""
        return [self.path]

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        with _readable(self.path, "Parquet"), _seekable(self.path) as file:
            yield pq.ParquetFile(file)


def _rows_at_once(about: pq.FileMetaData, names: list[str], at_once: int) -> int:
    """Rows of these columns that hold about `at_once` values."""
    paths = [about.schema.column(i).path for i in range(about.num_columns)]
    inside = tuple(f"{name}." for name in names)
    wanted = [i for i, path in enumerate(paths) if path in names or path.startswith(inside)]
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in wanted)
    return max(1, about.num_rows * at_once // max(values, 1))


class ArrowSource(Source):
    """A Feather or Arrow file, in the file or the stream format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.guess = {}
        with self._open() as (reader, count):
            self.schema = reader.schema
            self.rows = sum(reader.get_batch(i).num_rows for i in range(count)) if count else None

    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """As for `Source`."""
        with self._open() as (reader, count):
            of_file = (reader.get_batch(i) for i in range(count or 0))
            for number, batch in enumerate(of_file if count is not None else reader):
                # Unlike Parquet's, these bytes are used as they are: offsets may point anywhere.
                batch.validate(full=True)
                for piece in in_pieces(batch.select(columns), at_once):
                    yield piece, (number + 1) / (count or number + 2)

    def digest(self) -> str:
        """As for `Source`."""
        return digest(self.path)

    def files(self) -> list[Path]:
        """As for `Source`."""
        return [self.path]

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, int | None]]:
        """The reader, and the number of batches of a file; a stream does not know it."""
        with _readable(self.path, "Feather or Arrow"), _seekable(self.path) as file:
            try:
                reader = pa.ipc.open_file(file)
                count = reader.num_record_batches
            except pa.ArrowInvalid:
                file.seek(0)
                reader, count = pa.ipc.open_stream(file), None
            yield reader, count


class MemorySource(Source):
    """A table in memory, or whatever gives its batches again and again.

    Args:
        name: in sentences.
        schema: of the batches.
        rows: in all.
        make: gives the batches.
    """

    def __init__(
        self, name: str, schema: pa.Schema, rows: int, make: Callable[[], Iterator[pa.RecordBatch]]
    ) -> None:
        self.name = name
        self.schema = schema
        self.rows = rows
        self.guess = {}
        self.make = make

    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """As for `Source`."""
        done = 0
        for batch in self.make():
            for piece in in_pieces(batch.select(columns), at_once):
                done += len(piece)
                yield piece, done / max(1, self.rows or 0)

    def digest(self) -> str:
        """As for `Source`."""
        content = hashlib.blake2b(digest_size=16)
        sink = pa.PythonFile(_HashedWrites(content), mode="w")
        with pa.ipc.new_stream(sink, self.schema.remove_metadata()) as writer:
            for batch in self.make():
                writer.write_batch(batch.replace_schema_metadata(None))
        return content.hexdigest()

    def files(self) -> list[Path]:
        """As for `Source`: none."""
        return []


class _HashedWrites:
    """A file that only keeps the digest of what is written to it."""

    closed = False

    def __init__(self, content: Any) -> None:
        self.content = content

    def write(self, data: Any) -> int:
        self.content.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def _seekable(path: Path) -> Iterator[Any]:
    """The file; one that is compressed as a whole is unpacked beside the cache first."""
    if not is_packed(path):
        with pa.OSFile(str(named_in_utf8(path))) as file:
            yield file
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as aside:
        with unpacked(path) as (content, _):
            shutil.copyfileobj(content, aside, 1 << 22)
        aside.seek(0)
        yield pa.PythonFile(aside, mode="r")


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Turn what pyarrow raises about a file into one sentence."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise HeadtailError(f"`{path}` is not a file. Name a {kind} file.") from error
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"`{path}` has a column with a name that is not UTF-8. Rename it."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise HeadtailError(
            f"`{path}` is not a readable {kind} file; it may be cut short. Write or copy it again."
        ) from error
