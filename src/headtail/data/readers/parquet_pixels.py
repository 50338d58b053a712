"""Decoding the images of a Parquet column into the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headtail.data.cache import Store
from headtail.data.decode import open_rgb, whole
from headtail.data.points import Progress
from headtail.data.tables.columns import Columns
from headtail.errors import HeadtailError


def decode_into(
    store: Store,
    part: str,
    columns: Columns,
    contents: Iterator[tuple[int, bytes]],
    shape: tuple[int, ...] | None,
    skip: bool,
    at_once: int,
) -> tuple[tuple[int, ...], np.ndarray]:
    """Decode images into the store; return their shape, and which rows are kept.

    Args:
        store: takes the images as the array `part`, and a note on those left out.
        part: of the data set.
        columns: of the file.
        contents: rows and encoded bytes.
        shape: that images must have, if it is known.
        skip: leave out images that cannot be decoded or have another shape.
        at_once: images held in memory at once.
    """
    bad = 0
    kept = []
    block = []
    first_bad = ""
    for row, content in contents:
        path, inside = columns.at(row)
        try:
            image = whole(open_rgb(content, f"{path}, row {inside:,}"))
            if shape is not None and image.shape != shape:
                raise _other_size(path, inside, image.shape, shape)
        except HeadtailError as error:
            if not skip:
                raise
            bad += 1
            first_bad = first_bad or str(error).split(". ")[0]
            continue
        shape = image.shape
        kept.append(row)
        block.append(image)
        if len(block) == at_once:
            store.append(part, np.stack(block))
            block = []
    if block:
        store.append(part, np.stack(block))
    if shape is None or not kept:
        raise HeadtailError(f"`{columns.path}` has no image that can be decoded: {first_bad}.")
    if bad:
        store.facts["notes"].append(
            f"Left out {bad:,} of {columns.rows:,} images of {columns.called}; the first: "
            f"{first_bad}."
        )
    return shape, np.array(kept)


def encoded_images(
    columns: Columns, column: str, at_once: int, progress: Progress | None
) -> Iterator[tuple[int, bytes]]:
    """Rows and the encoded bytes in them."""
    for first, batch in columns.read([column], rows=at_once):
        array = batch.column(column)
        if pa.types.is_struct(array.type) and array.type.get_field_index("bytes") >= 0:
            array = array.field("bytes")
        if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
            raise HeadtailError(
                f"`{columns.path}`, column `{column}` holds {array.type}, but must hold encoded "
                "images as bytes. Write the content of JPEG or PNG files."
            )
        for row, content in enumerate(array, start=first):
            yield row, content.as_py() or b""
            if progress is not None and row % at_once == 0:
                progress(f"decoding {columns.called}", row / columns.rows)


def _other_size(
    path: str, row: int, shape: tuple[int, ...], before: tuple[int, ...]
) -> HeadtailError:
    return HeadtailError(
        f"`{path}`, row {row:,}: the image has {shape[2]} × {shape[1]} pixels, but those before it "
        f"{before[2]} × {before[1]}. Images in Parquet must be of one size: scale them, or keep "
        "them as files, in a folder per label."
    )
