"""Which format Parquet files have, by their columns."""

from __future__ import annotations

from pathlib import Path

from headtail.data.readers.parquet import Columns
from headtail.data.readers.parquet_images import holds_images
from headtail.errors import HeadtailError


def format_of(train: Path, test: Path | None) -> str:
    """Images, sequences or interactions."""
    first = Columns.of(train)
    if holds_images(first):
        return "images"
    second = first if test is None else Columns.of(test)
    if first.lists and second.lists:
        targets = first.target or second.target
        same_users = test is not None and first.user and second.user and not targets
        return "interactions" if same_users else "sequences"
    for columns in (first, second):
        if not (columns.lists or (columns.user and columns.item)):
            raise HeadtailError(
                f"`{columns.path}` has the columns {columns.listed}. Write sequences as a list "
                "column `items`, interactions as the columns `user_id` and `item_id`, or images as "
                "the columns `image` and `label`."
            )
    return "interactions"
