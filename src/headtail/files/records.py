"""Records (flat dataclasses of words and numbers) as CSV; numbers keep every digit."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headtail.errors import HeadtailError
from headtail.files.names import csv_cell, original
from headtail.files.regular import regular

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
_NUMBERS = {"int": int, "float": float, "float | None": float}
"""How fields of these types are read and written; all others are words."""
AGAIN = "Delete it and run the comparison again."


def to_csv(records: Iterable[Record], kind: type[Record]) -> str:
    """CSV text with one line per record and a column per field.

    Args:
        records: what to write.
        kind: their class, which decides the columns even if there are no records.
    """
    columns = [(field.name, str(field.type)) for field in fields(kind)]
    lines = [",".join(name for name, _ in columns)]
    for record in records:
        cells = (_text(type_, getattr(record, name)) for name, type_ in columns)
        lines.append(",".join(map(_quoted, cells)))
    return "\n".join([*lines, ""])


def read_csv(path: str | Path, kind: type[Record]) -> list[Record]:
    """The records in a file that `to_csv` made; a damaged file is refused with its row."""
    columns = tuple(field.name for field in fields(kind))
    try:
        with regular(Path(path)).open(newline="", encoding="utf-8") as file:
            lines = _lines(file)
    except OSError as error:
        raise HeadtailError(
            f"`{path}` cannot be read: {error.strerror}. Is it in the folder of a comparison?"
        ) from error
    except (csv.Error, UnicodeError) as error:
        raise HeadtailError(f"`{path}` is not a CSV file: {error}. {AGAIN}") from error
    if not lines or tuple(lines[0]) != columns:
        raise HeadtailError(
            f"`{path}` is not a results file of headtail: its columns must be "
            f"{', '.join(columns)}. {AGAIN}"
        )
    return [
        _record(line, kind, f"`{path}` is damaged in row {number}")
        for number, line in enumerate(lines[1:], start=2)
        if line
    ]


def _lines(file: Iterable[str]) -> list[list[str]]:
    """All lines of a file; a name may be longer than what Python's reader takes by default."""
    usual = csv.field_size_limit(sys.maxsize)
    try:
        return list(csv.reader(file))
    finally:
        csv.field_size_limit(usual)


def _quoted(cell: str) -> str:
    """A cell in quotes where it needs them; Python's writer forgets a carriage return."""
    return '"' + cell.replace('"', '""') + '"' if re.search('[,"\r\n]', cell) else cell


def _record(line: list[str], kind: type[Record], damaged: str) -> Record:
    columns = fields(kind)
    if len(line) != len(columns):
        raise HeadtailError(
            f"{damaged}: it has {len(line)} columns instead of {len(columns)}. {AGAIN}"
        )
    typed = zip((str(column.type) for column in columns), line, strict=True)
    try:
        return kind(*(_value(type_, text) for type_, text in typed))
    except ValueError as error:
        raise HeadtailError(f"{damaged}: {error}. {AGAIN}") from error


def _text(type_: str, value: Any) -> str:
    """As it would be written again after reading it: 1.0, not 1, for a float."""
    if value is None:
        return ""
    return repr(_NUMBERS[type_](value)) if type_ in _NUMBERS else csv_cell(value)


def _value(type_: str, text: str) -> Any:
    if type_ not in _NUMBERS:
        return original(text)
    return None if text == "" and type_.endswith("None") else _NUMBERS[type_](text)
