"""Small pictures in Parquet: their encoded bytes and a label, decoded once into the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.decode import open_rgb, whole
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.parquet import (
    Columns,
    Vocabulary,
    check_same_kind,
    hub_names,
    label_names,
)
from headtail.data.split import hold_out
from headtail.errors import HeadtailError

IMAGE = ("image", "img", "picture", "bytes")
LABEL = ("label", "fine_label", "labels", "target", "class")
AT_ONCE = 1024
"""Pictures held in memory at once."""


def read_pictures(
    train: Path,
    test: Path | None = None,
    validation: Path | None = None,
    *,
    holdout: float = 0.2,
    skip_bad_images: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    """Read pictures of one size from Parquet: a column `image` of encoded bytes (JPEG, PNG, …) and
    a column `label`.

    `image` may also be a struct with a field `bytes`; labels are whole numbers or strings. Labels
    get ids in their order. Test pictures whose label is null, −1 or not among those of training are
    answered, but not measured.

    Args:
        train: Parquet file.
        test: likewise, or None.
        validation: likewise, or None.
        holdout: share of the pictures that is kept for testing where there is no test file.
        skip_bad_images: leave pictures out that cannot be decoded or have another size, and count
            them.
        progress: told what is done, and how much of it.
    """
    given = {"train": train, "test": test, "validation": validation}
    parts = {name: path for name, path in given.items() if path is not None}
    recipe = {"reader": "pictures", "parts": list(parts), "skip": skip_bad_images}
    entry = cached(
        parts.values(),
        recipe | {"with": "rows, −1 for no label"},
        partial(_build, parts, skip_bad_images, progress),
    )
    points = {name: _points(entry, name) for name in parts}
    notes = ["Read as pictures.", *entry.facts["notes"]]
    digest = key_of(parts.values(), recipe)
    whole = None if "test" in points else points["train"]
    if whole is not None:
        points["train"], points["test"] = hold_out(whole, holdout)
        digest += f"-{holdout:g}"
        notes.append(
            f"There is no test file: {holdout:.0%} of the pictures are held out for testing."
        )
    return DataSet(
        train.stem,
        points["train"],
        points["test"],
        validation=points.get("validation"),
        label_names=_names(entry, train, points["train"].num_labels),
        notes=tuple(notes),
        digest=digest,
        whole=whole,
    )


def _names(entry: Entry, train: Path, num_labels: int) -> list[str] | list[int] | None:
    """The names of labels: strings, or what a hub calls their numbers."""
    names = label_names(entry)
    ids = [
        name for name in (range(num_labels) if names is None else names) if isinstance(name, int)
    ]
    words = hub_names(train, _column(Columns.of(train), LABEL)) if len(ids) == num_labels else None
    return (
        names
        if words is None or not set(ids) <= set(range(len(words)))
        else [words[i] for i in ids]
    )


def holds_pictures(columns: Columns) -> bool:
    """Whether there is a column for pictures and one for labels."""
    names = {name.lower() for name in columns.names}
    return bool(names & set(IMAGE)) and bool(names & set(LABEL))


def _build(parts: dict[str, Path], skip: bool, progress: Progress | None, store: Store) -> None:
    known: Vocabulary | None = None
    shape: tuple[int, ...] | None = None
    store.facts["notes"] = []
    for name, path in parts.items():
        columns = Columns.of(path)
        labels = _labels(columns, None if name != "test" or known is None else known.names.type)
        if name != "test":
            _check_labelled(name, columns, labels)
        known = Vocabulary.of([labels]) if known is None else known
        check_same_kind(known, labels, columns, _column(columns, LABEL))
        ids = known.ids(labels)
        if len(unknown := np.flatnonzero(ids < 0)) and name == "test":
            store.facts["notes"].append(
                _not_measured(columns, labels, len(unknown), parts.get("validation"))
            )
        elif len(unknown):
            where, row = columns.at(int(unknown[0]))
            label = (
                f"{labels[int(unknown[0])].as_py()!r}, which is not among the {len(known):,} of "
                "training"
            )
            raise HeadtailError(
                f"`{where}`: row {row:,} (from 0) has the label {label}. Drop such rows, or train "
                "on them too."
            )
        shape, kept = _write(name, columns, shape, skip, store, progress)
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
            f"`{columns.path}` has no rows. Write a row a picture, with the columns `image` and "
            "`label`."
        )
    return pa.concat_arrays(parts)


def _lacks(labels: pa.Array) -> np.ndarray:
    """Which pictures have no label: it is null or, as hubs write it, −1."""
    lacks = labels.is_null().to_numpy(zero_copy_only=False)
    return (
        lacks | (labels.fill_null(-1).to_numpy() == -1)
        if pa.types.is_integer(labels.type)
        else lacks
    )


def _check_labelled(part: str, columns: Columns, labels: pa.Array) -> None:
    """A picture to train or to validate on has a label."""
    lacks = _lacks(labels)
    if lacks.all():
        instead = "Train on a file that has some" if part == "train" else "Leave that file out"
        raise HeadtailError(
            f"`{columns.path}` has no labels: all {len(labels):,} are −1. {instead}."
        )
    if lacks.any():
        path, row = columns.at(int(lacks.argmax()))
        told = f"row {row:,} (from 0) has the label −1, which stands for none"
        raise HeadtailError(
            f'`{path}`: {told}. Drop such rows; a label of that name is a string, `"-1"`.'
        )


def _not_measured(columns: Columns, labels: pa.Array, unknown: int, validation: Path | None) -> str:
    """A note on test pictures that have no label which training knows."""
    if not _lacks(labels).all():
        told = (
            f"{unknown:,} of {len(labels):,} test pictures have a label that never occurs in "
            "training, or none"
        )
        return f"{told}: they are answered, but not measured."
    other = (
        f"name {'a part that has labels' if validation is None else validation.name} with "
        "`--test`, or leave that file out"
    )
    told = (
        f"{columns.called} has no labels (all are −1 or null): its pictures are answered, but not "
        "measured"
    )
    return f"{told}. To measure, {other}."


def _write(
    part: str,
    columns: Columns,
    shape: tuple[int, ...] | None,
    skip: bool,
    store: Store,
    progress: Progress | None,
) -> tuple[tuple[int, ...], np.ndarray]:
    """Decode a file into the store; the shape of its pictures, and which rows are kept."""
    bad = 0
    kept = []
    block = []
    first_bad = ""
    for row, content in _contents(columns, progress):
        path, inside = columns.at(row)
        try:
            picture = whole(open_rgb(content, f"{path}, row {inside:,}"))
            if picture.shape != (shape or picture.shape):
                raise _other_size(path, inside, picture.shape, shape or picture.shape)
        except HeadtailError as error:
            if not skip:
                raise
            bad = bad + 1
            first_bad = first_bad or str(error).split(". ")[0]
            continue
        shape = picture.shape
        kept.append(row)
        block.append(picture)
        if len(block) == AT_ONCE:
            store.append(part, np.stack(block))
            block = []
    if block:
        store.append(part, np.stack(block))
    if shape is None or not kept:
        raise HeadtailError(f"`{columns.path}` has no picture that can be decoded: {first_bad}.")
    if bad:
        store.facts["notes"].append(
            f"Left out {bad:,} of {columns.rows:,} pictures of {columns.called}; the first: "
            f"{first_bad}."
        )
    return shape, np.array(kept)


def _contents(columns: Columns, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
    column = _column(columns, IMAGE)
    for first, batch in columns.read([column], rows=AT_ONCE):
        array = batch.column(column)
        if pa.types.is_struct(array.type) and array.type.get_field_index("bytes") >= 0:
            array = array.field("bytes")
        if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
            held = f"`{columns.path}`, column `{column}` holds {array.type}"
            raise HeadtailError(
                f"{held}, but must hold encoded pictures as bytes. Write the content of JPEG or "
                "PNG files."
            )
        for row, content in enumerate(array, start=first):
            yield row, content.as_py() or b""
            if progress is not None and row % AT_ONCE == 0:
                progress(f"decoding {columns.called}", row / columns.rows)


def _column(columns: Columns, wanted: tuple[str, ...]) -> str:
    by_name = {name.lower(): name for name in columns.names}
    found = next((by_name[name] for name in wanted if name in by_name), None)
    if found is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}. Pictures need the columns `image` "
            "and `label`."
        )
    return found


def _other_size(
    path: Path, row: int, found: tuple[int, ...], before: tuple[int, ...]
) -> HeadtailError:
    sizes = (f"{shape[2]} × {shape[1]}" for shape in (found, before))
    return HeadtailError(
        f"`{path}`, row {row:,}: the picture has {' pixels, but those before it '.join(sizes)}. "
        "Pictures in Parquet must be of one "
        "size: scale them, or keep them as files, in a folder a label."
    )


def _points(entry: Entry, part: str) -> Points:
    labels = Ragged(entry.arrays[f"{part}_labels"], entry.arrays[f"{part}_offsets"])
    return Points(
        entry.arrays[part], labels, entry.facts["num_labels"], rows=entry.arrays[f"{part}_rows"]
    )
