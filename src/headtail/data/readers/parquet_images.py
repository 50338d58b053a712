"""Small images in Parquet: their encoded bytes and a label, decoded once into the cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.known import Known, unlabelled
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.parquet_pixels import decode_into, encoded_images
from headtail.data.reading import Reading
from headtail.data.split import with_test_part
from headtail.data.tables.columns import Columns, DataTables, check_same_kind, renamed
from headtail.data.tables.vocabulary import Vocabulary, label_names
from headtail.errors import HeadtailError

IN_DIGESTS = "pictures"
"""In the digests of data in saved runs, so it cannot change."""
IMAGE = ("image", "img", "picture", "bytes")
LABEL = ("label", "fine_label", "labels", "target", "class")
AT_ONCE = 1024
"""Images held in memory at once."""


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read tables of images as `reading` says."""
    if tables.test is None:
        tables = tables._replace(test=tables.validation, validation=None)
    data = read_parquet_images(
        tables.train,
        tables.test,
        tables.validation,
        holdout=reading.holdout,
        skip_bad_images=reading.skip_bad_images,
        progress=progress,
    )
    return renamed(data, tables)


def read_parquet_images(
    train: Path | Columns,
    test: Path | Columns | None = None,
    validation: Path | Columns | None = None,
    *,
    holdout: float = 0.2,
    skip_bad_images: bool = False,
    progress: Progress | None = None,
    at_once: int = AT_ONCE,
) -> DataSet:
    """Read images of one size from Parquet: a column `image` of encoded bytes and a column `label`.

    The bytes are those of a JPEG, PNG, … file; `image` may also be a struct with a field `bytes`.
    Labels are whole numbers or strings, and get ids in their order. Test images with a label that
    is null, −1 or not among those of training are answered, but not measured.

    Args:
        train: Parquet file.
        test: likewise, or None.
        validation: likewise, or None.
        holdout: share of the images kept for testing without a test file.
        skip_bad_images: leave images out that cannot be decoded or have another size, and count
            them.
        progress: called with what is being done and the share of it that is done.
        at_once: images held in memory at once.
    """
    paths = {"train": train, "test": test, "validation": validation}
    parts = {name: Columns.of(path) for name, path in paths.items() if path is not None}
    recipe = {"reader": IN_DIGESTS, "parts": list(parts), "skip": skip_bad_images}
    build = partial(_build, parts, skip_bad_images, at_once, progress)
    entry = cached(parts.values(), recipe | {"with": "rows, −1 for no label; images"}, build)
    points = {name: _points(entry, name) for name in parts}
    points, whole, mark, held = with_test_part(points, holdout, "images")
    return DataSet(
        parts["train"].table.title,
        points["train"],
        points["test"],
        validation=points.get("validation"),
        label_names=_names(entry, parts["train"], points["train"].num_labels),
        notes=("Read as images.", *entry.facts["notes"], *held),
        digest=key_of(parts.values(), recipe) + mark,
        whole=whole,
    )


def read_image_rows(
    path: Path, known: Known, skip_bad_images: bool, progress: Progress | None
) -> tuple[Points, list[str]]:
    """Every image of a Parquet file as a point of a model, without labels, and notes."""
    columns = Columns.of(path)
    column = _column(columns, IMAGE)

    def build(store: Store) -> None:
        store.facts["notes"] = []
        contents = encoded_images(columns, column, AT_ONCE, progress)
        _, kept = decode_into(store, "images", columns, contents, None, skip_bad_images, AT_ONCE)
        store.append("rows", kept)

    entry = cached([columns], {"reader": "images to answer", "skip": skip_bad_images}, build)
    images = entry.arrays["images"]
    size = tuple(images.shape[2:])
    if known.image_size is not None and size != tuple(known.image_size):
        ours, theirs = (f"{width} × {height}" for height, width in (size, known.image_size))
        raise HeadtailError(
            f"The images of `{path}` have {ours} pixels, but the model was trained on {theirs}. "
            "Scale them."
        )
    points = replace(unlabelled(images, known), rows=entry.arrays["rows"])
    return points, entry.facts["notes"]


def _names(entry: Entry, train: Columns, num_labels: int) -> list[str] | list[int] | None:
    """The names of labels: strings, or the names that a hub has for their numbers."""
    names = label_names(entry)
    ids = range(num_labels) if names is None else [name for name in names if isinstance(name, int)]
    if len(ids) < num_labels:
        return names
    words = train.hub_names(_column(train, LABEL))
    if words is None or not set(ids) <= set(range(len(words))):
        return names
    return [words[i] for i in ids]


def holds_images(columns: Columns) -> bool:
    """Whether there is a column for images and one for labels."""
    names = {name.lower() for name in columns.names}
    return bool(names & set(IMAGE)) and bool(names & set(LABEL))


def _build(
    parts: dict[str, Columns], skip: bool, at_once: int, progress: Progress | None, store: Store
) -> None:
    known: Vocabulary | None = None
    shape: tuple[int, ...] | None = None
    store.facts["notes"] = []
    for name, columns in parts.items():
        labels = _labels(columns, None if name != "test" or known is None else known.names.type)
        if name != "test":
            _check_labelled(name, columns, labels)
        known = Vocabulary.of([labels]) if known is None else known
        check_same_kind(known, labels, columns, _column(columns, LABEL))
        ids = known.ids(labels)
        unknown = np.flatnonzero(ids < 0)
        if len(unknown) and name == "test":
            note = _not_measured(columns, labels, len(unknown), parts.get("validation"))
            store.facts["notes"].append(note)
        elif len(unknown):
            first = int(unknown[0])
            where, row = columns.at(first)
            raise HeadtailError(
                f"`{where}`: row {row:,} (from 0) has the label {labels[first].as_py()!r}, which "
                f"is not among the {len(known):,} of training. Drop such rows, or train on them "
                "too."
            )
        column = _column(columns, IMAGE)
        contents = encoded_images(columns, column, at_once, progress)
        shape, kept = decode_into(store, name, columns, contents, shape, skip, at_once)
        ids = ids[kept]
        store.append(f"{name}_rows", kept)
        store.append(f"{name}_labels", ids[ids >= 0].astype(np.int32))
        store.append(f"{name}_offsets", np.r_[0, np.cumsum(ids >= 0)])
    assert known is not None
    known.save(store)
    store.facts["num_labels"] = len(known)


def _labels(columns: Columns, or_null: pa.DataType | None) -> pa.Array:
    column = _column(columns, LABEL)
    parts = [
        columns.ids(batch.column(column), column, first, or_null=or_null)
        for first, batch in columns.read([column])
    ]
    if not sum(map(len, parts)):
        raise HeadtailError(
            f"`{columns.path}` has no rows. Write a row per image, with the columns `image` and "
            "`label`."
        )
    return pa.concat_arrays(parts)


def _lacks(labels: pa.Array) -> np.ndarray:
    """Which images have no label: it is null or, as hubs write it, −1."""
    if pa.types.is_integer(labels.type):
        return labels.fill_null(-1).to_numpy() == -1
    return labels.is_null().to_numpy(zero_copy_only=False)


def _check_labelled(part: str, columns: Columns, labels: pa.Array) -> None:
    """Refuse images without a label in a part to train or validate on."""
    lacks = _lacks(labels)
    if lacks.all():
        instead = "Train on a file that has some" if part == "train" else "Leave that file out"
        raise HeadtailError(
            f"`{columns.path}` has no labels: all {len(labels):,} are −1. {instead}."
        )
    if lacks.any():
        path, row = columns.at(int(lacks.argmax()))
        raise HeadtailError(
            f"`{path}`: row {row:,} (from 0) has the label −1, which means none. Drop such rows; "
            'a label with that name is a string, `"-1"`.'
        )


def _not_measured(
    columns: Columns, labels: pa.Array, unknown: int, validation: Columns | None
) -> str:
    """A note on test images without a label that training knows."""
    if not _lacks(labels).all():
        return (
            f"{unknown:,} of {len(labels):,} test images have a label that never occurs in "
            "training, or none: they are answered, but not measured."
        )
    labelled = "a part that has labels" if validation is None else validation.called
    return (
        f"{columns.called} has no labels (all are −1 or null): its images are answered, but not "
        f"measured. To measure, name {labelled} as the test part, or leave that file out."
    )


def _column(columns: Columns, wanted: tuple[str, ...]) -> str:
    by_name = {name.lower(): name for name in columns.names}
    column = next((by_name[name] for name in wanted if name in by_name), None)
    if column is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}. Images need the columns `image` "
            "and `label`."
        )
    return column


def _points(entry: Entry, part: str) -> Points:
    labels = Ragged(entry.arrays[f"{part}_labels"], entry.arrays[f"{part}_offsets"])
    return Points(
        entry.arrays[part], labels, entry.facts["num_labels"], rows=entry.arrays[f"{part}_rows"]
    )
