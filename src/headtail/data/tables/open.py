"""From files, folders of shards and objects in memory to tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headtail.data.packed import ending_of, first_lines
from headtail.data.progress import Progress
from headtail.data.reading import DEFAULTS, Reading, data_name
from headtail.data.shards import part_of, shards_of
from headtail.data.tables.arrow_sources import ArrowSource, MemorySource, ParquetSource
from headtail.data.tables.delimited import SEPARATOR, DelimitedSource, widen_alike
from headtail.data.tables.dialects import Dialect, dialect_of
from headtail.data.tables.json_lines import JsonSource
from headtail.data.tables.list_columns import of_labels
from headtail.data.tables.roles import chosen_columns
from headtail.data.tables.table import Source, Table
from headtail.errors import HeadtailError

ROWS = 1 << 16
"""Rows of a batch of an object in memory."""


def open_table(path: Path, reading: Reading = DEFAULTS, progress: Progress | None = None) -> Table:
    """The table in a file, with the other shards of its part, or in a folder of shards."""
    shards = shards_of(path)
    if not shards:
        raise HeadtailError(f"`{path}` holds no tables.")
    name = str(shards[0] if path.is_file() else path)
    title = part_of(path)
    sources = tuple(_open(shard, reading, progress) for shard in shards)
    if len(sources) > 1:
        widen_alike(sources)
    return Table(name, title, data_name(path, title), sources)


def _open(path: Path, reading: Reading, progress: Progress | None) -> Source:
    ending = ending_of(path)
    if ending in (".parquet", ".pq"):
        return ParquetSource(path)
    if ending in (".feather", ".arrow", ".ipc"):
        return ArrowSource(path)
    if ending in (".json", ".jsonl", ".ndjson"):
        return JsonSource(path, reading.max_expansion)
    if not path.is_file():
        raise HeadtailError(f"`{path}` is not a file. Name a table.")
    lines = first_lines(path)
    if not any(line.strip() for line in lines):
        raise HeadtailError(f"`{path}` is empty. Write a line for each row.")
    chosen = chosen_columns(reading)
    named = [*chosen.pop("features", ()), *chosen.values()]
    dialect = dialect_of(lines, ending, named)
    if dialect is None:
        raise HeadtailError(
            f"`{path}` has no columns: its lines have nothing between values, or not the same "
            "number of them. Separate values by commas or tabs, and name the columns in the first "
            "line."
        )
    dialect = _as_requested(dialect, reading)
    return DelimitedSource(path, dialect, reading.skip_bad_lines, progress, reading.max_expansion)


def _as_requested(dialect: Dialect, reading: Reading) -> Dialect:
    """Lines of numbers that may begin with a user or not, and labels with another separator, as
    the settings say.
    """
    if reading.label_separator is not None:
        lists = dialect.lists.items()
        kept = {n: mark for n, mark in lists if n != reading.label and not of_labels(n)}
        return replace(dialect, lists=kept)
    if not dialect.lines or dialect.guess:
        return dialect
    if reading.format == "sequences" and reading.user is None:
        whole = replace(dialect, delimiter=SEPARATOR, names=("1",), lists={"1": " "}, lines=False)
        return replace(whole, guess={"item": "1"})
    return dialect


def table_of(data: Any, name: str = "data") -> Table | None:
    """The table in an object: a DataFrame, an Arrow table, a data set of Hugging Face; else
    None.
    """
    if hasattr(data, "with_format") and hasattr(data, "features"):
        return _of_hub(data, name)
    if hasattr(data, "reset_index"):
        data = data.reset_index() if any(level is not None for level in data.index.names) else data
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    try:
        table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise HeadtailError(
            f"`{name}` cannot become an Arrow table: {'; '.join(map(str, error.args))}. Give every "
            "column a name of its own and one type."
        ) from error

    def batches() -> Iterator[pa.RecordBatch]:
        return iter(table.to_batches(max_chunksize=ROWS))

    return Table(name, name, "data", (MemorySource(name, table.schema, table.num_rows, batches),))


def _of_hub(data: Any, name: str) -> Table:
    """A data set of Hugging Face, read in the order that it was given."""
    arrow = data.with_format("arrow")

    def batches() -> Iterator[pa.RecordBatch]:
        for part in arrow.iter(ROWS):
            yield from part.combine_chunks().to_batches()

    schema = data.features.arrow_schema
    return Table(name, name, "data", (MemorySource(name, schema, len(data), batches),))
