"""Splitting the values of a text column into lists."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.tables.list_columns import BRACKETS, list_in
from headtail.errors import HeadtailError


def split(column: pa.Array, separator: str, where: str) -> pa.Array:
    """Lists of strings; nothing is an empty list.

    Args:
        column: of strings.
        separator: one of `WORDS`.
        where: file and column, for errors.
    """
    if separator == BRACKETS:
        lists = [_in_brackets(value or "[]", where) for value in column.to_pylist()]
        return pa.array(lists, pa.list_(pa.string()))
    mark = re.escape(separator) if separator != " " else r"\s"
    text = pc.utf8_trim(column.fill_null(""), f" \t\r\n{separator}")  # pyright: ignore[reportAttributeAccessIssue]
    lists = pc.split_pattern_regex(text, rf"\s*{mark}[\s{mark}]*")  # pyright: ignore[reportAttributeAccessIssue]
    values = lists.flatten()
    lengths = np.where(pc.equal(text, "").to_numpy(zero_copy_only=False), 0, lists.value_lengths())  # pyright: ignore[reportAttributeAccessIssue]
    offsets = pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values.filter(pc.not_equal(values, "")))  # pyright: ignore[reportAttributeAccessIssue]


def _in_brackets(value: str, where: str) -> list[str]:
    found = list_in(value)
    if found is None:
        raise HeadtailError(
            f"{where}: `{value[:40]}` is not a list in brackets, as the first rows have. Write "
            "`[3, 5, 7]`."
        )
    return [str(element) for element in found]
