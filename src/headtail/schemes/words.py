"""Errors in the words of scheme names: a user who writes `model:tail@64` sees no class names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headtail.errors import HeadtailError, PythonName, Setting, Word
from headtail.schemes.table import MARGINS, SAMPLERS, SCORE_MARGINS, WEIGHTINGS

NAMES = {
    row.kind.__name__: name
    for rows in (SAMPLERS, WEIGHTINGS, MARGINS, SCORE_MARGINS)
    for name, row in rows.items()
}
"""What a class is called in a scheme."""


def write_name(name: PythonName) -> str:
    """A class by its name in a scheme, if it has one.

    >>> write_name(PythonName("WithinBatch")), write_name(PythonName("Labels"))
    ('`within-batch`', '`Labels`')
    """
    return f"`{NAMES.get(name.name, name.name)}`"


@contextmanager
def in_scheme_words(number: int | None = None) -> Iterator[None]:
    """Errors raised inside name what was written in a scheme.

    Args:
        number: the number after @ in the scheme, if there is one.
    """
    try:
        yield
    except HeadtailError as error:
        parts = error.sentence.parts
        words = (part if isinstance(part, str) else _in_scheme(part, number) for part in parts)
        raise HeadtailError(*words) from error


def _in_scheme(word: Word, number: int | None) -> str | Word:
    if isinstance(word, PythonName):
        return write_name(word)
    if word.name == "num_negatives" and number is not None:
        return f"`@{number if word.value is None else word.value}`"
    return "`excluded`" if word == Setting("exclude_target", True) else word
