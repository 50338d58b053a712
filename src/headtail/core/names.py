"""Names of labels: from a column to ids and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.core.columns import Names, read_column, refuse_missing
from headtail.core.counts import LARGEST_INT
from headtail.core.targets import Ragged
from headtail.errors import HeadtailError, PythonName
from headtail.files.tensors import from_bytes


def counted_names(column: Any) -> tuple[Names, Int64[np.ndarray, " L"]]:
    """The different values of a column, sorted unless they have an order of their own, and how
    often each occurs.
    """
    read = read_column(column)
    refuse_missing(read, "column")
    counts = np.bincount(read.codes, minlength=len(read.names))
    if not len(read.codes):
        raise HeadtailError("`column` holds no label, so there is nothing to count.")
    if read.in_order:
        return read.names, counts
    # Arrow's dictionaries may hold values that no row has.
    order = sorted(np.flatnonzero(counts).tolist(), key=read.names.__getitem__)
    return [read.names[i] for i in order], counts[order]  # pyright: ignore[reportReturnType]


def check_names(names: Names | None, num_labels: int) -> None:
    """Refuse names of other labels."""
    if names is None:
        return
    if not isinstance(names, list):
        raise HeadtailError(
            f"`names` must be a list with the name of each label, but got {type(names).__name__}. "
            "Write `list(names)`."
        )
    if len(names) != num_labels:
        raise HeadtailError(
            f"`names` has {len(names):,} names, but there are {num_labels:,} labels. Name each."
        )


def saved_names(content: Tensor, num_labels: int) -> Names | None:
    """The names that `as_bytes` wrote to a file, which is not trusted; None for none.

    >>> from headtail.files.tensors import as_bytes
    >>> saved_names(as_bytes(["cat", "dog"]), 2)
    ['cat', 'dog']
    """
    if content.dtype != torch.uint8 or content.dim() != 1:
        raise HeadtailError("The names of the labels are not text. Save them again.")
    try:
        names = from_bytes(content)
    except (ValueError, RecursionError) as error:
        raise HeadtailError("The names of the labels cannot be read. Save them again.") from error
    check_names(names, num_labels)
    kinds = {type(name) for name in names or ()}
    too_large = kinds == {int} and max(map(abs, names)) > LARGEST_INT
    if names is not None and (kinds not in ({str}, {int}) or too_large):
        raise HeadtailError(
            "The names of the labels must be all text or all whole numbers. Save them again."
        )
    return names


def joined_names(names: Names | None, more: Names | None, number: int) -> Names | None:
    """The names of old labels, then those of new ones; both have names or neither."""
    if names is None and more is None:
        return None
    if names is None or more is None:
        which = "new" if more is None else "old"
        raise HeadtailError(
            f"The {which} labels have no names, but the others do. Pass `names` for the new labels "
            "where the old ones have names, and only there."
        )
    check_names(more, number)
    return names + more  # pyright: ignore[reportReturnType, reportOperatorIssue]


def index_of(names: Names | None) -> dict[str | int, int]:
    """The id of each name."""
    if names is None:
        raise HeadtailError(
            "These labels have no names, so ids are their names. Make labels with names by ",
            PythonName("Labels.from_column"),
            "(column), or pass `names`.",
        )
    index: dict[str | int, int] = {name: i for i, name in enumerate(names)}
    if len(index) != len(names):
        twice = next(name for i, name in enumerate(names) if index[name] != i)
        raise HeadtailError(f"`names` has {twice!r} twice. Give each label a name of its own.")
    return index


def ids_of(
    column: Any, index: dict[str | int, int], unknown: int | None
) -> Int64[Tensor, " n"] | Ragged:
    """The ids of a column of names; values that are not in the index are `unknown`, or refused."""
    read = read_column(column)
    # A missing value has code −1, which is the last entry.
    id_of_code = np.array([*(index.get(name, -1) for name in read.names), -1], dtype=np.int64)
    ids = id_of_code[read.codes]
    if len(outside := np.flatnonzero(ids < 0)):
        if unknown is None:
            place = int(outside[0])
            code = int(read.codes[place])
            value = "no value" if code < 0 else repr(read.names[code])
            raise HeadtailError(
                f"`column` has {value} in row {read.row_of(place):,}, which is not the name of a "
                f"label ({len(outside):,} values in all; a label is named "
                f"{next(iter(index), None)!r}). Write `unknown=-100` to have losses ignore them."
            )
        ids[outside] = unknown
    values = torch.from_numpy(ids)
    return values if read.offsets is None else Ragged(values, torch.from_numpy(read.offsets))
