"""The columns of a table with their roles: ids, lists of ids, times and numbers in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headtail.data.progress import Progress
from headtail.data.reading import DEFAULTS, Reading
from headtail.data.tables.arrow_types import holds_ids, id_type, is_bytes, is_list, is_string
from headtail.data.tables.names import listed
from headtail.data.tables.open import open_table
from headtail.data.tables.roles import Roles, chosen_columns, roles_of
from headtail.data.tables.table import AT_ONCE, Table
from headtail.data.tables.times import (
    LARGEST,
    first_that_is_no_time,
    from_text,
    numbers_of_times,
    times_of_numbers,
    too_large,
)
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError, Setting

if TYPE_CHECKING:
    from headtail.data.points import DataSet

WORDS = {"lists": "items", "target": "next item"}
"""What roles are called where that is not their name."""


@dataclass(frozen=True, eq=False)
class Columns:
    """A table, and what its columns are for.

    Attributes:
        table: the table.
        roles: of its columns.
        at_once: ids held in memory at once.
        chosen: the columns that settings name, by their roles.
    """

    table: Table
    roles: Roles
    at_once: int = AT_ONCE
    chosen: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        source: Path | Table | Columns,
        at_once: int = AT_ONCE,
        reading: Reading = DEFAULTS,
        progress: Progress | None = None,
    ) -> Columns:
        """Look at a file with the other shards of its part, at a folder of shards, or at a
        table.
        """
        if isinstance(source, Columns):
            return replace(source, at_once=at_once)
        table = source if isinstance(source, Table) else open_table(source, reading, progress)
        chosen = chosen_columns(reading)
        _check_different(chosen)
        return cls(table, roles_of(table, reading), at_once, chosen)

    def like(self, train: Columns) -> Columns:
        """With the roles of the training columns, if columns have no names: a few rows show less
        than many.
        """
        same = self.names == train.names and all(name.isdigit() for name in self.names)
        return replace(self, roles=train.roles) if same else self

    @property
    def path(self) -> str:
        """The name of the table, for errors."""
        return self.table.name

    @property
    def lists(self) -> str | None:
        """The column of lists of items."""
        return self.roles.lists

    @property
    def user(self) -> str | None:
        """The column of users."""
        return self.roles.user

    @property
    def item(self) -> str | None:
        """The column of items, one per row."""
        return self.roles.item

    @property
    def target(self) -> str | None:
        """The column of items that come after a list."""
        return self.roles.target

    @property
    def is_log(self) -> bool:
        """Whether each row is an interaction of a user, or within a session, with an item."""
        return self.item is not None and (self.user or self.roles.session) is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column."""
        return tuple(self.table.schema.names)

    @property
    def listed(self) -> str:
        """The names of the columns, for errors; of many, the first."""
        return listed(self.names)

    @property
    def called(self) -> str:
        """The name of the file; of several, that of their part."""
        table = self.table
        return Path(table.name).name if len(table.sources) == 1 else table.title

    def at(self, row: int) -> tuple[str, int]:
        """The name of the file that holds a row, and which row it is there."""
        return self.table.at(row)

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        known = self.table.rows
        if known is not None:
            return known
        return sum(len(batch) for _, batch in self.table.read(list(self.names[:1])))

    def digest(self) -> Any:
        """Changes with the content, and with the columns that settings name; JSON."""
        content = self.table.digest()
        return [content, self.chosen] if self.chosen else content

    def files(self) -> list[Path]:
        """Those that it is read from."""
        return self.table.files()

    def kind(self, column: str) -> pa.DataType:
        """The type of a column."""
        return id_type(self.table.schema.field(column).type)

    def need_lists(self) -> str:
        """The list column, which must be there."""
        if self.lists is None:
            raise HeadtailError(
                f"`{self.path}` has no list column `items`, only {self.listed}. Write a row per "
                "sequence, its item ids as a list."
            )
        return self.lists

    def read(
        self, names: list[str], progress: Progress | None = None, rows: int | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of rows of these columns, each with the number of its first row.

        Args:
            names: of the columns.
            progress: called after each batch.
            rows: per batch; None for about `at_once` ids.
        """
        for first, batch in self.table.read(names, progress, self.at_once):
            size = rows or max(1, len(batch))
            for start in range(0, len(batch), size):
                yield first + start, batch.slice(start, size)

    def ids(
        self,
        array: pa.Array,
        column: str,
        first: int | np.ndarray,
        *,
        or_null: pa.DataType | None = None,
    ) -> pa.Array:
        """Item or user ids as int64 or strings.

        Args:
            array: of the column.
            column: its name.
            first: the row of its first id, or `[n]` the row of each, for errors.
            or_null: if ids may be missing, the type that a column of nulls gets.
        """
        kind = id_type(array.type)
        if or_null is not None and pa.types.is_null(kind):
            return array.cast(or_null)
        if array.null_count and or_null is None:
            self._refuse_null(array, column, first)
        if pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
            return array.cast(pa.large_string())
        # Databases write decimals: whole ones are ids.
        fractions = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if not holds_ids(kind) and not fractions:
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds {kind}, but ids must be whole numbers or "
                "strings. Cast the column first."
            )
        words = is_string(kind) or is_bytes(kind)
        try:
            return array.cast(pa.large_string() if words else pa.int64())
        except pa.ArrowInvalid as error:
            if words:
                raise HeadtailError(
                    f"`{self.path}`, column `{column}` is not UTF-8 text. Convert it, for example "
                    "with `iconv -f latin1 -t utf-8`."
                ) from error
            if fractions:
                raise HeadtailError(
                    f"`{self.path}`, column `{column}` holds fractions, but ids must be whole "
                    "numbers or strings. Name another column."
                ) from error
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
            name, row = self.table.at(first + first_null(array))
            raise HeadtailError(
                f"`{name}`, column `{column}`: row {row:,} (from 0) is null. Write a list, which "
                "may be empty."
            )
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(array.value_lengths().to_numpy(), out=offsets[1:])
        values = array.flatten()
        if values.null_count:
            inside = int(np.searchsorted(offsets, first_null(values), side="right")) - 1
            name, row = self.table.at(first + inside)
            raise HeadtailError(
                f"`{name}`, column `{column}`: the list of row {row:,} (from 0) has a null in it. "
                "Drop it."
            )
        return self.ids(values, column, first), offsets

    def times(self, array: pa.Array, column: str, first: int | np.ndarray) -> np.ndarray:
        """`[n]` int64 that rise with time: numbers as they are, or in millionths, dates as such."""
        if array.null_count:
            self._refuse_null(array, column, first, "a time")
        kind = id_type(array.type)
        if pa.types.is_decimal(kind):
            kind = pa.float64()
            array = array.cast(kind)
        if pa.types.is_time(kind) or pa.types.is_boolean(kind):
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds {kind}, which has no date. Write seconds "
                "since 1970, or dates such as `2026-01-31 12:00:00`, or name another column."
            )
        if pa.types.is_floating(kind) and too_large(array):
            raise HeadtailError(
                f"`{self.path}`, column `{column}` holds times above {LARGEST:.0e} as numbers with "
                "fractions. Write them as whole numbers, or in seconds."
            )
        try:
            return numbers_of_times(array)
        except pa.ArrowInvalid as error:
            wrong = first_that_is_no_time(array)
            name, row = self.table.at(_row(first, wrong))
            held = str(array[wrong].as_py())[:60]
            raise HeadtailError(
                f"`{name}`, row {row:,} (from 0): `{held}` in column `{column}` is "
                "not a time, or not written like those of the other rows. Write seconds since "
                "1970, or dates such as `2026-01-31 12:00:00`."
            ) from error

    def time_type(self, column: str) -> pa.DataType:
        """The type that a column of times is read as; strings are numbers or dates."""
        kind = self.kind(column)
        if not is_string(kind):
            return pa.float64() if pa.types.is_decimal(kind) else kind
        _, batch = next(self.read([column]))
        return from_text(batch.column(column).cast(pa.string()).slice(0, 1)).type

    def times_as_read(self, times: np.ndarray, column: str) -> pa.Array:
        """Times, as `times` returned them, as the numbers or dates that the column holds."""
        return times_of_numbers(times, self.time_type(column))

    def _refuse_null(
        self, array: pa.Array, column: str, first: int | np.ndarray, wanted: str = "an id"
    ) -> None:
        name, row = self.table.at(_row(first, first_null(array)))
        raise HeadtailError(
            f"`{name}`, column `{column}`: row {row:,} (from 0) is null. Drop it, or write "
            f"{wanted}."
        )

    def note(self, used: Iterable[str]) -> str:
        """Which columns have these roles, and which are not used; one sentence."""
        pairs = [(name, getattr(self.roles, name)) for name in used]
        said = [
            f"{called(column)} → {WORDS.get(role, role)}"
            for role, column in pairs
            if isinstance(column, str)
        ]
        if "features" in used and self.roles.features:
            said.append(f"{_shortened(self.roles.features)} → features")
        taken = {column for _, column in pairs} | set(
            self.roles.features if "features" in used else ()
        )
        left = [name for name in self.names if name not in taken]
        are = "is" if len(left) == 1 else "are"
        rest = f"; {_shortened(left)} {are} not used" if left else ""
        return f"{', '.join(said)}{rest}."

    def hub_names(self, column: str) -> list[str] | None:
        """The names of the labels 0, 1, … of a column, where a hub has noted them."""
        noted = (self.table.schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            names = json.loads(noted)["info"]["features"][column]["names"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        named = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return names if named else None


class DataTables(NamedTuple):
    """The tables of a data set: to train on, and perhaps to test on and to validate on."""

    train: Columns
    test: Columns | None = None
    validation: Columns | None = None

    @property
    def parts(self) -> dict[str, Columns]:
        """Those that are there, by their names."""
        return {name: part for name, part in self._asdict().items() if part is not None}


def renamed(data: DataSet, tables: DataTables) -> DataSet:
    """Data from these tables with their short name, and with notes on the tables."""
    notes = [note for part in tables.parts.values() for note in part.table.notes]
    return replace(data, name=tables.train.table.short, notes=(*data.notes, *dict.fromkeys(notes)))


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


def first_null(array: pa.Array) -> int:
    """The place of the first null."""
    return int(array.is_null().to_numpy(zero_copy_only=False).argmax())


def _row(first: int | np.ndarray, place: int) -> int:
    return first + place if isinstance(first, int) else int(first[place])


def _check_different(chosen: dict[str, Any]) -> None:
    """Refuse a column that settings name twice."""
    role_of: dict[str, str] = {}
    for role, named in chosen.items():
        for name in named if role == "features" else [named]:
            if name in role_of:
                raise HeadtailError(
                    f"The column `{name}` is named twice: by ",
                    Setting(role_of[name]),
                    " and by ",
                    Setting(role),
                    ". Name another column with one of them.",
                )
            role_of[name] = role


def called(column: str) -> str:
    """A column in a sentence; one without a name has a number."""
    return f"column {column}" if column.isdigit() else column


def _shortened(names: Iterable[str]) -> str:
    words = [called(name) for name in names]
    if len(words) > 6:
        return f"{words[0]} … {words[-1]} ({len(words)} columns)"
    return ", ".join(words)
