"""A table: what the page shows, and every digit for the CSV file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A heading.

    Attributes:
        text: as shown.
        slice: the slice it is shown with, or "" for always.
        numeric: whether it is aligned right.
    """

    text: str
    slice: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class TableCell:
    """What a reader sees, and what the column is sorted by.

    Attributes:
        text: as shown.
        value: a number or a word; None is sorted last.
        mark: "best", "up", "down" or "".
        detail: shown small below the text.
    """

    text: str
    value: float | str | None
    mark: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: its id, and the name of its CSV file.
        caption: for readers who cannot see it.
        columns: the headings.
        rows: lists of cells.
        csv: the first line and all others, with every digit.
        baseline: the row that is marked as baseline, or -1.
    """

    name: str
    caption: str
    columns: list[Column]
    rows: list[list[TableCell]]
    csv: list[list[Any]]
    baseline: int = -1
