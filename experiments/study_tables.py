"""What turns runs into what is committed, for all three studies: CSV files, tables of means, and their places on pages.

A study's rows outlive its runs. What is run again replaces what the files held of it, and all else stays (`with_known`).
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headtail.metrics import mean_and_deviation
from headtail.results import Row, read_rows, write_text

Line = TypeVar("Line")


def given_folder() -> Path:
    """That of the runs, from the command line: without it, what is committed would be overwritten by nothing."""
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if folder is None or not folder.is_dir():
        sys.exit(f"Name one folder that holds a study's runs, as `{Path(sys.argv[0]).name} experiments/results/STUDY`.")
    return folder


def with_known(new: Sequence[Line], known: Iterable[Line], key: Callable[[Line], Any]) -> list[Line]:
    """The new lines, and those known of whose key there is no new one.

    >>> with_known([("a", 1)], [("a", 0), ("b", 0)], key=lambda line: line[0])
    [('a', 1), ('b', 0)]
    """
    have = {key(one) for one in new}
    return [*new, *(one for one in known if key(one) not in have)]


def rows_in(path: Path) -> list[Row]:
    """Of a file of results; none if it is not there."""
    return read_rows(path) if path.exists() else []


def read_table(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV file by column; none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, lines: Sequence[dict[str, str]]) -> None:
    """Beside, and renamed; nothing where there are none."""
    if not lines:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, text.getvalue())


def shown(values: Sequence[float]) -> str:
    """Mean and deviation in percent; – where there is nothing to tell.

    >>> shown([0.25, 0.35]), shown([float("nan")])
    ('30.0 ± 7.1', '–')
    """
    if not values or any(value != value for value in values):  # noqa: PLR0124 - nan, of a slice without classes
        return "–"
    mean, deviation = mean_and_deviation(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def publish(page: Path, parts: dict[str, str]) -> None:
    """Put tables into a page, if it is there, and print them."""
    if page.exists():
        write_text(page, place_in(page.read_text(encoding="utf-8"), parts))
    for name, part in parts.items():
        print(f"\n## {name}\n\n{part}")


def place_in(page: str, parts: dict[str, str]) -> str:
    """The page with each table between `<!-- table NAME -->` and `<!-- end -->`; what has no place is left out."""
    for name, text in parts.items():
        mark = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = mark.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page
