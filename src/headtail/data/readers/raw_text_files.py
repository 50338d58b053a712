"""Raw texts in files: fastText's lines, lines of text with lines of labels, JSON lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headtail.data.packed import MAX_EXPANSION
from headtail.data.points import DataSet, Progress
from headtail.data.readers.raw_text import read_texts
from headtail.data.readers.raw_text_folder import (
    holds_fasttext,
    holds_records,
    labels_file,
    names_file,
    part_name,
    plain_name,
)
from headtail.data.readers.text_sources import (
    TextSource,
    fasttext_source,
    json_source,
    lines_source,
    read_names,
)
from headtail.data.reading import DataFiles, Reading, data_name
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read files of raw text as `reading` says."""
    return read_for_model(files, reading, progress, None)


def read_for_model(
    files: DataFiles, reading: Reading, progress: Progress | None, trained: Trained | None
) -> DataSet:
    """Read files of raw text with the terms and labels of a model that was trained on others."""
    paths = {"train": files.train, "test": files.test, "validation": files.validation}
    parts = {
        part: text_source(path, reading.max_expansion)
        for part, path in paths.items()
        if path is not None
    }
    own_labels = holds_records(files.train) or holds_fasttext(files.train, False)
    labels = None if own_labels else labels_file(files.train)
    if trained is None and not own_labels and labels is None:
        raise HeadtailError(
            f"`{files.train}` holds texts, but a file with their labels, such as "
            f"`{_example(files.train)}`, is not there. Add it: line i has the labels of text i."
        )
    by_number = labels is not None or holds_records(files.train)
    named = names_file(files.train.parent, but=labels) if by_number else None
    names = None if named is None else read_names(named, reading.max_expansion)
    data = read_texts(parts, reading, progress, names=names, trained=trained)
    notes = data.notes if named is None else (*data.notes, f"Label names are from {named.name}.")
    return replace(data, name=data_name(files.train, part_name(files.train)), notes=notes)


def text_source(path: Path, max_expansion: float = MAX_EXPANSION) -> TextSource:
    """The texts in a file, with their labels where it or a file beside it has them."""
    if holds_records(path):
        return json_source(path, max_expansion)
    if holds_fasttext(path, False):
        return fasttext_source(path, max_expansion)
    return lines_source(path, labels_file(path), max_expansion)


def _example(texts: Path) -> str:
    """A name for the missing file of labels."""
    return texts.name.replace("X", "Y") if "X" in texts.name else f"{plain_name(texts)}_labels.txt"
