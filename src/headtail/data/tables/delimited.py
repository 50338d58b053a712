"""Delimited text, read by pyarrow in blocks of lines; what it cannot read is rewritten first."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from headtail.data.cache import Store, cached
from headtail.data.digests import digest
from headtail.data.packed import MAX_EXPANSION, first_lines, line_blocks
from headtail.data.progress import Progress
from headtail.data.tables.dialects import NUMBER, Dialect
from headtail.data.tables.list_columns import split_note
from headtail.data.tables.split_lists import split
from headtail.data.tables.table import Source, in_pieces
from headtail.errors import HeadtailError, Setting

BLOCK = 1 << 22
"""Bytes parsed at a time."""
SEPARATOR = "\x1f"
"""Separates columns where pyarrow could not: it takes a single character."""
NULLS = ["", "NULL", "null", "NaN", "nan", "\\N"]
ALSO_NULLS = ["NA", "N/A", "#N/A", "n/a", "None", "none", "<NA>"]
"""Words for what is missing in columns of numbers; a column of words may mean them."""
_WIDER = {"null": "int64", "int64": "double", "double": "string"}
"""The next type to try for a column with a value that does not fit."""
MOST_MISFITS = 16
"""Columns that get a wider type one by one."""
_MISFIT = re.compile(r"CSV column #(\d+):.* CSV conversion error to (\S+): invalid value '(.*)'")


class DelimitedSource(Source):
    """A text file of columns, plain or compressed.

    All of it is read once to find the types of its columns and its bad lines; both are kept in the
    cache.

    Args:
        path: the file.
        dialect: how its lines hold columns.
        skip_bad_lines: leave out lines with another number of columns, and count them.
        progress: called while its types are looked for.
        max_expansion: how many times its size a compressed file may become.
    """

    is_text = True

    def __init__(
        self,
        path: Path,
        dialect: Dialect,
        skip_bad_lines: bool,
        progress: Progress | None = None,
        max_expansion: float = MAX_EXPANSION,
    ) -> None:
        self.path = path
        self.name = str(path)
        self.dialect = dialect
        self.guess = {str(role): column for role, column in dialect.guess.items()}
        self.skip = skip_bad_lines
        self.max_expansion = max_expansion
        recipe = {"reader": "delimited", "dialect": dialect.recipe, "skip": skip_bad_lines}
        self.nulls = NULLS
        facts = cached([path], recipe | {"with": "nulls"}, partial(self._look, progress)).facts
        self.nulls = facts["nulls"]
        kinds = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(facts["types"])))
        types = {kind.name: kind.type for kind in kinds}
        self._set_types(types)
        self.rows = facts["rows"]
        if dialect.header:
            self.notes = tuple(split_note(*each) for each in dialect.lists.items())
        if facts["bad"]:
            lines = "line" if facts["bad"] == 1 else "lines"
            self.notes += (
                f"{path}: skipped {facts['bad']:,} bad {lines}, the first is {facts['first_bad']}",
            )

    def _set_types(self, types: dict[str, pa.DataType]) -> None:
        """Read columns with these types; of lists, that of their values."""
        listed = {name: pa.list_(types[name]) for name in self.dialect.lists}
        self.types = types
        self.schema = pa.schema([(name, (types | listed)[name]) for name in self.dialect.names])

    def widen(self, types: dict[str, pa.DataType]) -> None:
        """Read some columns with other types, which must fit all of their values."""
        other = {name: kind for name, kind in types.items() if self.types.get(name, kind) != kind}
        self._set_types(self.types | other)
        self.notes += tuple(
            f"{name} is read as words: not all files of the part have numbers or dates in it."
            for name, kind in other.items()
            if kind == pa.string()
        )

    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """As for `Source`."""
        for batch, share in self._read(self.types, columns, lambda _: "skip"):
            arrays = [self._as_typed(name, batch) for name in columns]
            for piece in in_pieces(pa.RecordBatch.from_arrays(arrays, columns), at_once):
                yield piece, share

    def digest(self) -> Any:
        """As for `Source`."""
        return [digest(self.path), self.dialect.recipe, self.skip]

    def files(self) -> list[Path]:
        """As for `Source`."""
        return [self.path]

    def _look(self, progress: Progress | None, store: Store) -> None:
        """Find types that fit every value: those of the first block, or wider ones."""
        types, missing = _seen_in_words(self.path, self.dialect)
        self.nulls = NULLS + (ALSO_NULLS if missing else [])
        above = [
            (number, f"line {number} is above the header")
            for number, line in enumerate(first_lines(self.path)[: self.dialect.above], start=1)
            if line.strip()
        ]
        bad: list[tuple[int, str]] = []
        misfits = 0
        while True:
            bad[:] = above
            rows = 0
            seen: dict[str, pa.DataType] = {}
            try:
                every = list(self.dialect.names)
                for batch, share in self._read(types, every, partial(_note, bad)):
                    rows += len(batch)
                    if progress:
                        progress(f"looking at {self.path.name}", share)
                    seen = {name: batch.schema.field(name).type for name in batch.schema.names}
            except pa.ArrowInvalid as error:
                types = self._widened(types, error)
                misfits += 1
                if misfits == MOST_MISFITS:
                    types = self._fitting(types)
                continue
            break
        if bad and not self.skip:
            raise HeadtailError(
                f"{self.path}, {bad[0][1]}. Correct the line, or leave such lines out (",
                Setting("skip_bad_lines"),
                ").",
            )
        if not rows:
            raise HeadtailError(f"`{self.path}` holds no rows. Write a line for each.")
        lists = {name: self._list_type(name) for name in self.dialect.lists}
        store.facts |= {
            "types": pa.schema(list((seen | lists).items())).serialize().to_pybytes().hex(),
            "rows": rows,
            "nulls": self.nulls,
            "bad": len(bad),
            "first_bad": bad[0][1] if bad else "",
        }

    def _widened(
        self, types: dict[str, pa.DataType], error: pa.ArrowInvalid
    ) -> dict[str, pa.DataType]:
        misfit = _MISFIT.search(str(error))
        if misfit is None:
            why = " ".join(str(error).split())[:300].rstrip(".")
            raise HeadtailError(f"`{self.path}` is not readable as a table: {why}.") from error
        name = self.dialect.names[int(misfit[1])]
        if misfit[3] in ALSO_NULLS and self.nulls == NULLS:
            self.nulls = NULLS + ALSO_NULLS
            return types
        if misfit[2] == "int64" and re.fullmatch(r"[-+]?\d+", misfit[3]):
            return types | {name: pa.string()}  # too large for a number: it is a name
        return types | {name: pa.type_for_alias(_WIDER.get(misfit[2], "string"))}

    def _fitting(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Types that fit every value of every column, in one pass: a file with very many columns
        would otherwise be read once for each.
        """
        every = {name: pa.string() for name in self.dialect.names}
        fitting = {name: types.get(name, pa.int64()) for name in self.dialect.names}
        for batch, _ in self._read(every, list(every), lambda _: "skip"):
            for name in every:
                while fitting[name] != pa.string():
                    try:
                        batch.column(name).cast(fitting[name])
                        break
                    except pa.ArrowInvalid:
                        wider = _WIDER.get(str(fitting[name]), "string")
                        fitting[name] = pa.type_for_alias(wider)
        return fitting

    def _list_type(self, name: str) -> pa.DataType:
        """Whole numbers if all values of a list column are."""
        types = {self.dialect.names[0]: pa.string()} | {n: pa.string() for n in self.dialect.lists}
        kinds = (pa.int64(), pa.float64())
        for kind in kinds:
            try:
                for batch, _ in self._read(types, [name], lambda _: "skip"):
                    self._split(name, batch).flatten().cast(kind)
            except pa.ArrowInvalid:
                continue
            return kind
        return pa.string()

    def _as_typed(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name not in self.dialect.lists:
            return batch.column(name)
        return self._split(name, batch).cast(pa.list_(self.types[name]))

    def _split(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        where = f"`{self.path}`, column `{name}`"
        return split(batch.column(name), self.dialect.lists[name], where)

    def _read(
        self, types: dict[str, pa.DataType], columns: list[str], bad: Callable[[Any], str]
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        dialect = self.dialect
        # Lists are split later; a line of numbers has no separators for pyarrow.
        as_text = types | {name: pa.string() for name in dialect.lists}
        known = {name: kind for name, kind in as_text.items() if name in columns}
        share = [0.0]
        delimiter = dialect.delimiter if dialect.delimiter in ",\t;|" else SEPARATOR
        file = io.BufferedReader(
            _Blocks(_rewritten(self.path, dialect, share, self.max_expansion)), BLOCK
        )
        options = (
            pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK,
                column_names=list(dialect.names),
                skip_rows=dialect.above + int(dialect.header),
            ),
            pyarrow.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if dialect.quotes else False,
                newlines_in_values=dialect.quotes,
                invalid_row_handler=bad,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=known,
                include_columns=columns,
                null_values=self.nulls,
                strings_can_be_null=True,
                decimal_point=dialect.decimal,
            ),
        )
        with _without_tracebacks():
            reader = pyarrow.csv.open_csv(pa.PythonFile(file, mode="r"), *options)
        while (batch := _next(reader)) is not None:
            yield batch, share[0]


def widen_alike(sources: Sequence[Source]) -> None:
    """Give text files of one part the same types: a column that is whole numbers in one and has
    fractions, words or nothing in another is read as what fits all of them.
    """
    of_text = [source for source in sources if isinstance(source, DelimitedSource)]
    if len(of_text) < len(sources):
        return
    kinds: dict[str, set[pa.DataType]] = {}
    for source in of_text:
        for name, kind in source.types.items():
            kinds.setdefault(name, set()).add(kind)
    wider = {name: _common({*held} - {pa.null()}) for name, held in kinds.items() if len(held) > 1}
    for source in of_text:
        source.widen(wider)


def _common(kinds: set[pa.DataType]) -> pa.DataType:
    if len(kinds) == 1:
        return next(iter(kinds))
    return pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.string()


def _next(reader: pyarrow.csv.CSVStreamingReader) -> pa.RecordBatch | None:
    with _without_tracebacks():
        return next(reader, None)


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Let pyarrow print nothing about a bad line that is not UTF-8: it cannot show it to `_note`,
    prints why, and then raises.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, UnicodeDecodeError):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _note(bad: list[tuple[int, str]], row: Any) -> str:
    held = f"{row.actual_columns} columns where others have {row.expected_columns}"
    bad.append((row.number, f"line {row.number:,} has {held}"))
    return "skip"


def _seen_in_words(path: Path, dialect: Dialect) -> tuple[dict[str, pa.DataType], bool]:
    """Columns in which a number begins with 0, such as `0005019281`, or is too large: they are
    names. And whether a column of numbers has words for what is missing.
    """
    separator = re.escape(dialect.delimiter) if dialect.delimiter != " " else r"\s+"
    rows = [re.split(separator, line.strip()) for line in first_lines(path)]
    named = [dict(zip(dialect.names, row, strict=False)) for row in rows[dialect.above :]]
    if dialect.header:
        named = named[1:]
    names: dict[str, pa.DataType] = {}
    missing = False
    for name in dialect.names:
        values = {row.get(name, "").strip('" ') for row in named}
        if any(re.fullmatch(r"0\d+", value) or _too_large(value) for value in values):
            names[name] = pa.string()
        others = values - {*NULLS, *ALSO_NULLS}
        numbers = bool(others) and all(NUMBER.fullmatch(value) for value in others)
        missing |= numbers and not values.isdisjoint(ALSO_NULLS)
    return names, missing


def _too_large(value: str) -> bool:
    return value.isascii() and value.isdigit() and (len(value) > 19 or int(value) >= 1 << 63)


def _rewritten(
    path: Path, dialect: Dialect, share: list[float], max_expansion: float
) -> Iterator[bytes]:
    """The lines with a single character between columns."""
    separator = SEPARATOR.encode()
    first = True
    for block, done in line_blocks(path, BLOCK, max_expansion=max_expansion):
        share[0] = done
        if b"\0" in block:
            raise HeadtailError(
                f"`{path}` has NUL bytes, so it is damaged or not UTF-8 text. Convert it, for "
                "example with `iconv -f utf-16 -t utf-8`."
            )
        text = block.removeprefix(b"\xef\xbb\xbf") if first else block
        first = False
        if dialect.delimiter == "::":
            text = text.replace(b"::", separator)
        elif dialect.lines:
            text = re.sub(rb"(?m)^[ \t]*(\d+)[ \t]*", rb"\1" + separator, text)
        elif dialect.delimiter == " ":
            text = re.sub(rb"(?m)^[ \t]+|[ \t\r]+$", b"", text)
            text = re.sub(rb"[ \t]+", separator, text)
        yield text


class _Blocks(io.RawIOBase):
    """A file of blocks that come one after the other."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.blocks = iter(blocks)
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, room: Any) -> int:
        """Fill the room with the next bytes; 0 at the end."""
        while not len(self.rest):
            block = next(self.blocks, None)
            if block is None:
                return 0
            self.rest = memoryview(block)
        number = min(len(room), len(self.rest))
        room[:number] = self.rest[:number]
        self.rest = self.rest[number:]
        return number
