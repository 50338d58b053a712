"""A comparison in which every character of every name is visible, and no name breaks the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from headtail.comparison.results import ClassError, Comparison, Row, Try
from headtail.files.names import NAME, SENTENCE, shown

Record = TypeVar("Record", Row, ClassError, Try)


def visible(comparison: Comparison) -> Comparison:
    """The same comparison, with all its text as `shown` writes it."""
    data = _visible(comparison.data, SENTENCE)
    slices = data.get("slices")
    if isinstance(slices, dict) and "examples" in slices:
        data["slices"] = slices | {"examples": _visible(slices["examples"], NAME)}
    return replace(
        comparison,
        rows=_records(comparison.rows),
        classes=_records(comparison.classes),
        tries=_records(comparison.tries),
        data=data | ({"name": shown(data["name"], NAME)} if "name" in data else {}),
        answers=_visible(comparison.answers, NAME),
        schemes=_visible(comparison.schemes, SENTENCE),
        settings=_visible(comparison.settings, SENTENCE),
        made_by=_visible(comparison.made_by, SENTENCE),
        failures=_visible(comparison.failures, SENTENCE),
        missing=_visible(comparison.missing, SENTENCE),
    )


def _visible(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {_visible(key, most): _visible(inner, most) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(inner, most) for inner in value]
    return shown(value, most) if isinstance(value, str) else value


def _records(records: Sequence[Record]) -> list[Record]:
    """Records with visible words; almost all are as they should be."""
    return [_record(record) for record in records]


def _record(record: Record) -> Record:
    words = {
        field.name: word
        for field in fields(record)
        if isinstance(word := getattr(record, field.name), str)
        and not (len(word) <= NAME and word.isprintable())
    }
    if not words:
        return record
    return replace(record, **{name: shown(word, NAME) for name, word in words.items()})  # pyright: ignore[reportArgumentType] - words only
