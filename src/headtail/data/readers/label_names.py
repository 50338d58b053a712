"""Names of labels that are ids, from a file beside the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headtail.data.packed import MAX_EXPANSION
from headtail.data.points import DataSet, Points
from headtail.data.readers.raw_text_folder import names_file
from headtail.data.readers.text_sources import read_names
from headtail.errors import HeadtailError


def with_label_names(data: DataSet, folder: Path, max_expansion: float = MAX_EXPANSION) -> DataSet:
    """The same data with the names in a folder's `Y.txt`, `lbl.json`, `label_names.txt`, …"""
    path = names_file(folder)
    if path is None:
        return data
    names = read_names(path, max_expansion)
    if len(names) < data.train.num_labels:
        raise HeadtailError(
            f"`{path}` names {len(names):,} labels, but there are {data.train.num_labels:,}. Write "
            "one name per line, label 0 first, or rename the file if it is something else."
        )

    def widened(points: Points | None) -> Points | None:
        return None if points is None else replace(points, num_labels=len(names))

    parts = {part: widened(getattr(data, part)) for part in ("train", "test", "whole")}
    notes = (*data.notes, f"Label names are from {path.name}.")
    return replace(data, **parts, label_names=names, notes=notes)
