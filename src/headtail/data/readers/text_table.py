"""Tables with a column of raw text and a column of labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from headtail.data.points import DataSet, Progress
from headtail.data.readers.raw_text import read_texts
from headtail.data.readers.text_sources import Texts, TextSource
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import is_list
from headtail.data.tables.columns import Columns, DataTables, renamed
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError, Sentence, Setting

ROWS = 1 << 14
"""Texts held in memory at once."""


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read tables of texts with labels as `reading` says."""
    return read_tables_for_model(tables, reading, progress, None)


def read_tables_for_model(
    tables: DataTables, reading: Reading, progress: Progress | None, trained: Trained | None
) -> DataSet:
    """Read tables of texts with the terms and labels of a model that was trained on others."""
    text, label = tables.train.roles.text, tables.train.roles.label
    for role, column in (("text", text), ("label", label)):
        if column is None and (role == "text" or trained is None):
            raise HeadtailError(
                f"`{tables.train.path}` has the columns {tables.train.listed}, and none of them is "
                f"for the {role}. Name it with ",
                Setting(role),
                ".",
            )
    assert text is not None
    unsplit = []
    if reading.label_separator is not None and label is not None and trained is None:
        unsplit = _if_never(tables.train, label, reading.label_separator)
    parts = {
        name: TextSource(
            columns.called,
            (columns,),
            partial(_blocks, columns, text, label, reading.label_separator),
        )
        for name, columns in tables.parts.items()
    }
    names = None if label is None else tables.train.hub_names(label)
    data = read_texts(
        parts,
        reading,
        progress,
        names=names,
        trained=trained,
        columns=[text, label, reading.label_separator],
    )
    roles = ["text"] if label is None else ["text", "label"]
    notes = (data.notes[0], tables.train.note(roles), *unsplit, *data.notes[1:])
    return renamed(replace(data, notes=notes), tables)


def _if_never(columns: Columns, label: str, separator: str) -> list[str]:
    """A note if no label of training has the separator; lists have no use for one."""
    if not separator:
        raise HeadtailError(Setting("label_separator"), " is empty. Write what separates labels.")
    example = ""
    for _, batch in columns.read([label], rows=ROWS):
        if is_list(batch.column(label).type):
            raise HeadtailError(
                Setting("label_separator", separator),
                f" would do nothing: column `{label}` of `{columns.path}` holds lists, one label "
                "per value. Leave it out.",
            )
        written = [str(value) for value in batch.column(label).to_pylist() if value is not None]
        if any(separator in value for value in written):
            return []
        example = max([example, *written], key=len)
    note = Sentence(
        Setting("label_separator", separator),
        f" never occurs in column `{label}`: each value is one label, for example `{example}`.",
    )
    return [note]


def _blocks(
    columns: Columns, text: str, label: str | None, separator: str | None
) -> Iterator[Texts]:
    if text not in columns.names:
        raise HeadtailError(
            f"`{columns.path}` has no column `{text}`, as training has, only {columns.listed}."
        )
    wanted = [text]
    if label is not None and label in columns.names:
        wanted.append(label)
    number = columns.rows
    for first, batch in columns.read(wanted, rows=ROWS):
        texts = ["" if value is None else str(value) for value in batch.column(text).to_pylist()]
        labels: list[list[str]] = [[] for _ in texts]
        if len(wanted) == 2:
            labels = _labels(batch.column(wanted[1]), separator)
        yield Texts(texts, labels, (first + len(batch)) / number)


def _labels(column: pa.Array, separator: str | None) -> list[list[str]]:
    """The labels of each row: none where it has a null."""
    values = column.to_pylist()
    if is_list(column.type):
        return [_different(value or []) for value in values]
    if separator is not None:
        return [_different(str(value).split(separator)) if value else [] for value in values]
    return [[] if value is None else _different([value]) for value in values]


def _different(labels: list) -> list[str]:
    """Labels as text, each once; whole numbers that a null made fractions are whole again."""
    whole = (
        int(label) if isinstance(label, float) and label.is_integer() else label for label in labels
    )
    names = (str(label).strip() for label in whole if label is not None)
    return list(dict.fromkeys(name for name in names if name))
