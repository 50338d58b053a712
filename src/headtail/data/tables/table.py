"""A table: sources of equal columns, read one after the other in record batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headtail.data.progress import Progress
from headtail.errors import HeadtailError

AT_ONCE = 1 << 20
"""Ids held in memory at once."""


class Source(ABC):
    """One file, or one object in memory.

    Attributes:
        name: in sentences, for example a path.
        schema: names and types of its columns.
        rows: the number of its rows, or None where only reading shows it.
        notes: sentences about it that a user should see.
        guess: what columns without names are for, role → column.
        is_text: whether it is delimited text, with lines that may be bad.
        first: the row of the file that its first row is.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    notes: tuple[str, ...] = ()
    guess: dict[str, str]
    is_text: bool = False
    first: int = 0

    def pieces(self, rows: int) -> list[Source]:
        """Itself, in pieces of about so many rows where it can be read from the middle."""
        return [self]

    @abstractmethod
    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Batches of about `at_once` values of these columns, with the share read so far."""

    @abstractmethod
    def digest(self) -> Any:
        """Changes with the content; JSON."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Those that it is read from; none for an object in memory."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one or several sources.

    Attributes:
        name: in sentences.
        title: the name of its part, for example `train`.
        short: the name of the data set that it alone would be.
        sources: one or more, of equal columns.
    """

    name: str
    title: str
    short: str
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        first = self.sources[0]
        for source in self.sources:
            _check_names(source)
        wanted = {field.name: field.type for field in first.schema}
        for source in self.sources[1:]:
            # In any order: columns are read by their names.
            found = {field.name: field.type for field in source.schema}
            if found != wanted:
                raise _other_columns(first.name, wanted, source.name, found)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.sources[0].schema

    @property
    def rows(self) -> int | None:
        """The number of rows; None where only reading shows it."""
        total = 0
        for source in self.sources:
            if source.rows is None:
                return None
            total += source.rows
        return total

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a user should see."""
        number = len(self.sources)
        shards = (f"{self.title} is in {number:,} files, which are read in their order.",)
        of_sources = tuple(note for source in self.sources for note in source.notes)
        return of_sources + (shards if number > 1 else ())

    @property
    def may_have_bad_lines(self) -> bool:
        """Whether it is delimited text."""
        return any(source.is_text for source in self.sources)

    def read(
        self, columns: list[str], progress: Progress | None = None, at_once: int = AT_ONCE
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of rows of these columns, each with the number of its first row.

        Args:
            columns: their names.
            progress: called after each batch.
            at_once: about how many values a batch holds.
        """
        first = 0
        for number, source in enumerate(self.sources):
            for batch, share in source.batches(columns, at_once):
                yield first, batch.select(columns)
                first += len(batch)
                if progress:
                    done = (number + share) / len(self.sources)
                    progress(f"reading {source.name.rsplit('/', 1)[-1]}", done)

    def pieces(self, rows: int) -> list[Table]:
        """The table in tables of about so many rows, one after the other."""
        runs: list[list[Source]] = []
        held = rows
        for source in self.sources:
            for piece in source.pieces(rows):
                size = rows if piece.rows is None else piece.rows
                if held + size > rows:
                    runs.append([])
                    held = 0
                runs[-1].append(piece)
                held += size
        return [replace(self, sources=tuple(run)) for run in runs]

    def at(self, row: int) -> tuple[str, int]:
        """The name of the source that holds a row, and which row it is there."""
        for source in self.sources:
            if source.rows is None or row < source.rows:
                return source.name, source.first + row
            row -= source.rows
        raise IndexError(row)

    def digest(self) -> Any:
        """Changes with the content; JSON."""
        digests = [source.digest() for source in self.sources]
        return digests[0] if len(digests) == 1 else digests

    def files(self) -> list[Path]:
        """Those that it is read from."""
        return [path for source in self.sources for path in source.files()]


def _check_names(source: Source) -> None:
    """Refuse columns with the same name, or with a name that is not text."""
    try:
        names = source.schema.names
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"`{source.name}` has a column with a name that is not UTF-8. Rename it."
        ) from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise HeadtailError(f"`{source.name}` has two columns `{twice}`. Rename one of them.")


def _other_columns(
    first: str, wanted: dict[str, pa.DataType], name: str, found: dict[str, pa.DataType]
) -> HeadtailError:
    """How the columns of a source differ from those of the first one."""
    lacks = [column for column in wanted if column not in found]
    more = [column for column in found if column not in wanted]
    differ = [column for column in wanted if column in found and wanted[column] != found[column]]
    if lacks or more:
        words = [f"no `{column}`" for column in lacks] + [f"`{column}`" for column in more]
        what = f"has other columns than `{first}`: {', '.join(words)}"
    else:
        column = differ[0]
        what = f"has {found[column]} in column `{column}`, where `{first}` has {wanted[column]}"
    return HeadtailError(
        f"`{name}` {what}. Write all files of a part with the same columns and types."
    )


def in_pieces(batch: pa.RecordBatch, at_once: int) -> Iterator[pa.RecordBatch]:
    """A batch in slices of at most about `at_once` values."""
    rows = max(1, at_once // max(1, batch.num_columns))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)
