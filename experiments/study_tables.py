"""Shared by the tables of all three studies: CSV files, tables of means, and placing tables on
pages.

Rows outlive runs: new rows replace those of the same run, and all others are kept (`with_known`).
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stats.paired import Paired

from headtail.comparison.results import Row, read_rows
from headtail.files.atomic import write_text
from headtail.metrics import mean_and_deviation

Line = TypeVar("Line")


def given_folder() -> Path:
    """The folder of runs from the command line; exits without one, to protect committed files."""
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else None
    if folder is None or not folder.is_dir():
        sys.exit(
            f"Name one folder with the runs of a study, as in `{Path(sys.argv[0]).name} "
            "experiments/results/STUDY`."
        )
    return folder


def with_known(
    new: Sequence[Line], known: Iterable[Line], key: Callable[[Line], Any]
) -> list[Line]:
    """The new lines, and the known lines with other keys.

    >>> with_known([("a", 1)], [("a", 0), ("b", 0)], key=lambda line: line[0])
    [('a', 1), ('b', 0)]
    """
    have = {key(one) for one in new}
    return [*new, *(one for one in known if key(one) not in have)]


def rows_in(path: Path) -> list[Row]:
    """Rows of a results file; none if it does not exist."""
    return read_rows(path) if path.exists() else []


def read_table(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV file by column; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, lines: Sequence[dict[str, str]]) -> None:
    """Write a CSV file atomically; does nothing without lines."""
    if not lines:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, text.getvalue())


def in_columns(result: Paired) -> dict[str, str]:
    """A difference as columns."""
    low, high = result.interval()
    numbers = {"difference": result.difference, "low": low, "high": high}
    return {name: f"{number:.6f}" for name, number in numbers.items()} | {"p": f"{result.p:.3g}"}


def shown(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent; – without values.

    >>> shown([0.25, 0.35]), shown([float("nan")])
    ('30.0 ± 7.1', '–')
    """
    if not values or any(value != value for value in values):  # noqa: PLR0124 - NaN for a slice without classes
        return "–"
    mean, deviation = mean_and_deviation(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def publish(page: Path, parts: dict[str, str]) -> None:
    """Put tables into a page, if it exists, and print them."""
    if page.exists():
        write_text(page, place_in(page.read_text(encoding="utf-8"), parts))
    for name, part in parts.items():
        print(f"\n## {name}\n\n{part}")


def place_in(page: str, parts: dict[str, str]) -> str:
    """Replace what is between `<!-- table NAME -->` and `<!-- end -->`; others are ignored."""
    for name, text in parts.items():
        mark = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = mark.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page
