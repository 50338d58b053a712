"""Columns of text files whose values are lists: `3 5 7`, `3,5,7`, `3|5|7` or `[3, 5, 7]`."""

from __future__ import annotations

import ast
import json
import re

from headtail.data.tables.names import ORDERED_LISTS, candidates, plain

BRACKETS = "[]"
"""The separator of values that are lists in brackets, as JSON or Python write them."""
WORDS = {BRACKETS: "brackets", "|": "`|`", ";": "semicolons", ",": "commas", " ": "blanks"}
"""Separators in the order in which they are looked for, and in words."""
_OF_ITEMS = re.compile(r"items|basket|.*(ids|list|seq|sequence|sequences|history|histories)")
"""Names that are lists whatever they hold; `movies` with `Toy Story` may be one title."""
_MOST_WORDS = 3
"""Words that the values of a list have on average at most; more are a text with commas."""


def separators_of(names: list[str], rows: list[list[str]]) -> dict[str, str]:
    """What separates the values of each column that holds lists: those with the name of a list
    and, in these first rows, values that fit one separator.

    >>> separators_of(["user", "items", "title"], [["1", "3 5 7", "Toy Story"], ["2", "3", "Up"]])
    {'items': ' '}
    """
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    found = {
        name: next((mark for mark in WORDS if _fits(mark, name, columns[name])), None)
        for name in names
        if _is_list(plain(name))
    }
    return {name: mark for name, mark in found.items() if mark is not None}


def of_labels(name: str) -> bool:
    """Whether a column has a name that is for several labels."""
    word = plain(name)
    return bool(candidates("label", [name])) and word.endswith("s") and word != "class"


def split_note(name: str, separator: str) -> str:
    """A sentence on a column that is split."""
    if separator == BRACKETS:
        return f"{name} holds lists in brackets."
    return f"{name} is split at {WORDS[separator]}."


def _is_list(word: str) -> bool:
    items = ORDERED_LISTS.fullmatch(word) and (word.endswith("s") or _OF_ITEMS.fullmatch(word))
    return bool(items) or of_labels(word)


def _fits(separator: str, name: str, values: list[str]) -> bool:
    """Whether all of these values can be lists, and one has several values."""
    written = [value for value in values if value]
    if separator == BRACKETS:
        return bool(written) and all(list_in(value) is not None for value in written)
    pieces = [value.split(None if separator == " " else separator) for value in written]
    if not any(len(row) > 1 for row in pieces) or any(value[0] in "[{" for value in written):
        return False
    tokens = [token.strip() for row in pieces for token in row]
    if separator == " ":
        ids = all(re.search(r"\d", token) for token in tokens)
        words = all(re.fullmatch(r"[\w./:#@+-]*\w", token) for token in tokens)
        return ids or (words and bool(_OF_ITEMS.fullmatch(plain(name))))
    return sum(len(token.split()) for token in tokens) <= _MOST_WORDS * len(tokens)


def list_in(value: str) -> list | None:
    """The list that JSON or Python would write so, or None."""
    if not value.lstrip().startswith("["):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return list(parse(value.strip()))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue  # the last two where it is nested without end
    return None
