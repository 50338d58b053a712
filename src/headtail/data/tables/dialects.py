"""Recognising delimited text: what separates its columns, and whether its first line names them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from headtail.data.tables.list_columns import separators_of
from headtail.data.tables.names import Role, candidates

MOSTLY = 0.9
"""Share of the lines that must have as many columns as most have; others are bad lines."""
_TYPED = re.compile(r"(.+):(token|float|token_seq|float_seq)")
"""A column of RecBole's atomic files."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_RATINGS = 11
"""Most different values that ratings have."""
_WORDS = 3
"""Most words that names have on average; more are a text."""
_EPOCH = 1e8
"""Numbers above it may be times: seconds since 1970 passed it in 1973."""
_DATE = re.compile(r"\d{4}([-/])\d\d?\1\d\d?([T ].*)?|\d\d?([./])\d\d?\3\d{4}( .*)?")
_SINGLE = (",", "\t", ";", "|")


@dataclass(frozen=True)
class Dialect:
    """How the lines of a text file hold columns.

    Attributes:
        delimiter: one character, `::`, or a blank, which is any number of blanks.
        names: of the columns; their numbers from 1, where the file has no header.
        header: whether the first line is one.
        lists: columns that hold lists, and what separates their values.
        guess: what columns without names are for.
        lines: whether a line is a user and any number of items.
        quotes: whether values may be in double quotes.
        decimal: what begins the fraction of a number: a point, or a comma.
        above: lines above the header, which are blank or bad.
    """

    delimiter: str
    names: tuple[str, ...]
    header: bool
    lists: dict[str, str] = field(default_factory=dict)
    guess: dict[Role, str] = field(default_factory=dict)
    lines: bool = False
    quotes: bool = False
    decimal: str = field(default=".", repr=False)
    above: int = field(default=0, repr=False)

    @property
    def recipe(self) -> str:
        """Everything that decides what is read, as text."""
        commas = ", decimal commas" if self.decimal == "," else ""
        above = f", {self.above} lines above" if self.above else ""
        return f"{self!r}{commas}{above}"


def dialect_of(lines: list[str], ending: str, named: Collection[str] = ()) -> Dialect | None:
    r"""The dialect of a file with these first lines, or None where they are not a table.

    Args:
        lines: the first ones.
        ending: of the file's name.
        named: columns that the settings name; a line with one of them names the columns.

    >>> dialect_of(["userId,movieId,rating", "1,31,2.5", "1,1029,3.0"], ".csv").names
    ('userId', 'movieId', 'rating')
    >>> dialect_of(["196\t242\t3\t881250949", "186\t302\t3\t891717742"], ".data").guess
    {'user': '1', 'item': '2', 'rating': '3', 'time': '4'}
    """
    places = [place for place, line in enumerate(lines) if line.strip()]
    lines = [lines[place] for place in places]
    if not lines:
        return None
    typed = [_TYPED.fullmatch(name) for name in lines[0].rstrip("\n").split("\t")]
    if all(typed):
        return _typed([found for found in typed if found])
    for delimiter, width, rows in _divided(lines, ending):
        kept = [row for row in rows if len(row) == width]
        commas = _decimal_commas(kept) if delimiter == ";" else set()
        kept = [
            [
                value.replace(",", ".") if place in commas else value
                for place, value in enumerate(row)
            ]
            for row in kept
        ]
        dialect = _of_rows(delimiter, kept, named)
        quoted = rf'(^|[{delimiter}])"[^"]*"($|[{delimiter}])'
        quotes = delimiter in _SINGLE and any(re.search(quoted, line) for line in lines)
        # Values in quotes may go over several lines, which have other columns each.
        whole = sum(line.count(delimiter) == width - 1 for line in lines) / len(lines)
        quotes |= delimiter in _SINGLE and whole < MOSTLY
        above = next(place for place, row in enumerate(rows) if len(row) == width)
        return replace(
            dialect,
            quotes=quotes or delimiter in (",", ";"),
            decimal="," if commas else ".",
            above=places[above] if dialect.header else 0,
        )
    return _of_lists(lines) or _of_one_column(lines, ending)


def _divided(lines: list[str], ending: str) -> list[tuple[str, int, list[list[str]]]]:
    """The delimiters that give most lines as many columns, how many, and the rows; first those
    that give the first line as many too, since numbers below it may have commas of their own.
    """
    found = []
    for delimiter in _delimiters(ending):
        rows = _rows(lines, delimiter)
        width, number = Counter(map(len, rows)).most_common(1)[0]
        if width > 1 and number >= MOSTLY * len(rows):
            found.append((delimiter, width, rows))
    return sorted(found, key=lambda each: len(each[2][0]) != each[1])


def _decimal_commas(rows: list[list[str]]) -> set[int]:
    """The columns of numbers with decimal commas below the first line; none where others have
    points.
    """
    below = [[value for value in column if value] for column in zip(*rows[1:], strict=True)]

    def hold(mark: str) -> set[int]:
        number, fraction = rf"[-+]?\d+({mark}\d+)?", rf"[-+]?\d+{mark}\d+"
        return {
            place
            for place, column in enumerate(below)
            if all(re.fullmatch(number, value) for value in column)
            and any(re.fullmatch(fraction, value) for value in column)
        }

    lists = separators_of(rows[0], rows[1:])
    named = {place for place, name in enumerate(rows[0]) if name in lists}
    return set() if hold(r"\.") else hold(",") - named


def _of_one_column(lines: list[str], ending: str) -> Dialect | None:
    """A single column with a name, such as users to answer."""
    name = lines[0].strip().strip('"')
    if ending not in (".csv", ".tsv", ".tab") or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return None
    delimiter = "," if ending == ".csv" else "\t"
    lists = separators_of([name], _rows(lines[1:], delimiter))
    return Dialect(delimiter, (name,), True, lists, quotes=ending == ".csv")


def _delimiters(ending: str) -> tuple[str, ...]:
    if ending in (".tsv", ".tab"):
        return ("\t",)
    return (*_SINGLE, "::") if ending == ".csv" else ("::", "\t", ",", ";", "|", " ")


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    if delimiter == " ":
        return [line.split() for line in lines]
    if delimiter == "::":
        return [line.split("::") for line in lines]
    return [row for row in csv.reader(lines, delimiter=delimiter) if row]


def _typed(columns: list[re.Match[str]]) -> Dialect:
    lists = {column[1]: " " for column in columns if column[2].endswith("_seq")}
    return Dialect("\t", tuple(column[1] for column in columns), True, lists)


def _of_rows(delimiter: str, rows: list[list[str]], named: Collection[str]) -> Dialect:
    # pandas writes its index without a name.
    first = [name.strip() or f"unnamed {place}" for place, name in enumerate(rows[0], start=1)]
    first = _different(first)
    words = {name for name in named if not NUMBER.fullmatch(name)}  # not columns by their number
    if not words.isdisjoint(first) or _is_header(first, rows[1:]):
        return Dialect(delimiter, tuple(first), True, separators_of(first, rows[1:]))
    names = tuple(str(place) for place in range(1, len(first) + 1))
    return Dialect(delimiter, names, False, guess=_guess(rows))


def _different(names: list[str]) -> list[str]:
    """Names that repeat with a number behind them, as pandas writes them.

    >>> _different(["user", "item", "item"])
    ['user', 'item', 'item.1']
    """
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}.{n}" if n else name for name, n in zip(names, before, strict=True)]


def _is_header(first: list[str], below: list[list[str]]) -> bool:
    """Whether a line names the columns below it: it has names that are known, or words above
    numbers.
    """
    if any(map(NUMBER.fullmatch, first)):
        return False
    roles: tuple[Role, ...] = ("user", "item", "label", "text", "head", "session", "features")
    if any(candidates(role, first) for role in roles):
        return True
    columns = list(zip(*below, strict=True)) if below else []
    return any(all(map(NUMBER.fullmatch, column)) for column in columns)


def _guess(rows: list[list[str]]) -> dict[Role, str]:
    """What columns without names are for, where their values show it."""
    columns = list(zip(*rows, strict=True))
    numbers = [all(map(NUMBER.fullmatch, column)) for column in columns]
    are: dict[str, Callable[[int], bool]] = {
        "rating": lambda i: numbers[i] and _like_ratings(columns[i]),
        "time": lambda i: _like_times(columns[i], numbers[i]),
    }
    if not all(_are_names(column) for column in columns[:2]):
        return {}
    if len(columns) == 2:
        return {"user": "1", "item": "2"}
    for last in (("rating", "time"), ("time",), ("rating",)):
        if len(columns) == 2 + len(last) and all(are[role](2 + i) for i, role in enumerate(last)):
            if last == ("rating",) and len(set(columns[1])) <= _RATINGS:
                continue  # as few relations as ratings: it may be a graph
            others = {role: str(3 + i) for i, role in enumerate(last)}
            return {"user": "1", "item": "2", **others}  # pyright: ignore[reportReturnType]
    few_relations = 2 * len(set(columns[1])) <= len(rows)
    # What comes last is a tail only where some are heads too: it may be a kind of event.
    entities = not (numbers[1] and numbers[-1]) and not set(columns[0]).isdisjoint(columns[-1])
    if len(columns) == 3 and few_relations and entities:
        return {"head": "1", "relation": "2", "tail": "3"}
    return {}


def _are_names(column: tuple[str, ...]) -> bool:
    """Whether these can be names of users or items: not fractions, and not sentences."""
    fractions = any(NUMBER.fullmatch(value) and not float(value).is_integer() for value in column)
    words = sum(len(value.split()) for value in column) / len(column)
    return not fractions and words <= _WORDS


def _like_times(column: tuple[str, ...], numbers: bool) -> bool:
    if numbers:
        return min(map(float, column)) > _EPOCH
    return all(map(_DATE.fullmatch, column))


def _like_ratings(column: tuple[str, ...]) -> bool:
    values = {float(value) for value in column}
    halves = all(0 <= value <= 10 and (2 * value).is_integer() for value in values)
    return halves and len(values) <= 2 * _RATINGS


_WHOLE = re.compile(r"[0-9]{1,100}")
"""An id in a line of ids; Python refuses to convert thousands of digits."""


def _of_lists(lines: list[str]) -> Dialect | None:
    """Lines of a user and its items, all of them numbers."""
    rows = [line.split() for line in lines]
    if not all(_WHOLE.fullmatch(token) for row in rows for token in row):
        return None
    users = [int(row[0]) for row in rows]
    known = len(set(users)) == len(users) and users == sorted(users)
    guess: dict[Role, str] = {"user": "1", "item": "2"} if known else {}
    return Dialect(" ", ("1", "2"), False, {"2": " "}, guess, lines=True)
