"""Rows to answer: points of any file for a model that is trained already, without labels.

Features get the ids that they had in training. What the model does not know is left out and counted
in a note.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from headtail.data.bag import Bag
from headtail.data.guarded import fragile_files, read_in_child_first
from headtail.data.known import Known, dense_rows, left_out, unlabelled
from headtail.data.limits import one_sentence
from headtail.data.packed import ending_of
from headtail.data.points import Points, Progress
from headtail.data.readers.image_kinds import IMAGE_FOLDERS, IMAGE_LISTS, is_bare
from headtail.data.readers.table_files import holds_table
from headtail.data.readers.text_folder import TEXT
from headtail.data.reading import Reading
from headtail.errors import HeadtailError, check_exists, need


def rows_to_answer(
    path: Path, known: Known, reading: Reading, progress: Progress | None = None
) -> tuple[Points, list[str]] | None:
    """Every row of a file as a point for a model, and notes; None if such a file has to be read
    with the data of training.

    Args:
        path: a file, or a folder of images.
        known: what the model knows.
        reading: how to read the file.
        progress: called with what is being done and the share of it that is done.
    """
    with one_sentence(path):
        check_exists(path)
        fragile = fragile_files([path])
        work = partial(_rows, path, known, reading)
        read_in_child_first(work, fragile, reading, progress, purpose=f"answer with {known.kind}")
        return _rows(path, known, reading, progress)


def _rows(
    path: Path, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]] | None:
    if known.kind == "images":
        return _image_rows(path, known, reading, progress)
    if known.kind == "dense" and path.suffix.lower() in (".npz", ".safetensors"):
        return _arrays(path, known, reading)
    if known.kind == "sparse" and known.relations is None:
        return _lines(path, known, reading, progress) if TEXT.holds(path, True) else None
    if not holds_table(path, True):
        return None
    need("pyarrow", extra="data", to="Reading tables")
    from headtail.data.readers.table_rows import read_rows
    from headtail.data.tables.columns import Columns

    return read_rows(Columns.of(path, reading=reading), known, reading, progress)


def _image_rows(
    path: Path, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]] | None:
    if ending_of(path) in (".parquet", ".pq"):
        need("pyarrow", extra="data", to="Reading tables")
        from headtail.data.readers.parquet_images import read_image_rows

        return read_image_rows(path, known, reading.skip_bad_images, progress)
    return _images(path, known, reading, progress) if _lists_images(path) else None


def _lists_images(path: Path) -> bool:
    """Whether these are images and nothing else: a list, or a folder without parts of its own."""
    if not path.is_dir():
        return is_bare(path) or IMAGE_LISTS.holds(path, False)
    images = is_bare(path) or IMAGE_FOLDERS.holds(path, False)
    return images and IMAGE_LISTS.find(path, False) is None


def _images(
    path: Path, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]]:
    from headtail.data.readers.image_listing import list_images
    from headtail.data.readers.located_images import files_of

    listing = list_images(path, may_lack=True)
    files, kept, _, notes = files_of(listing, reading.root, reading.skip_bad_images, progress)
    return replace(unlabelled(files, known), rows=torch.from_numpy(kept)), notes


def _arrays(path: Path, known: Known, reading: Reading) -> tuple[Points, list[str]]:
    from headtail.data.readers.array_files import Part, names_in

    names = names_in(path)
    prefix = next((start for start in ("", "test_", "train_") if f"{start}features" in names), None)
    if prefix is None:
        listed = ", ".join(f"`{name}`" for name in names) or "no arrays"
        raise HeadtailError(f"`{path}` holds {listed}, but `features` is needed.")
    part = Part(path, prefix, reading.max_expansion)
    return dense_rows(part.features, known, path), []


def _lines(
    path: Path, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]]:
    """Lines of features, with labels or without; those of unknown features are left out."""
    from headtail.data.readers.text import read_text

    file = read_text(
        path,
        skip_bad_lines=reading.skip_bad_lines,
        max_expansion=reading.max_expansion,
        progress=progress,
    )
    bag = file.points.features
    assert isinstance(bag, Bag)
    inside = bag.columns < known.num_features
    kept = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])
    features = Bag(kept[bag.offsets], bag.columns[inside], bag.values[inside], known.num_features)
    points = replace(unlabelled(features, known), rows=file.points.rows)
    unknown = len(inside) - int(inside.sum())
    note = left_out(unknown, len(inside), "feature values have a feature")
    return points, [*file.notes, *note]
