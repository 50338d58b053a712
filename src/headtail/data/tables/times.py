"""Columns of times as whole numbers that rise with time, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.tables.arrow_types import id_type, is_string

LARGEST = 9e12
"""Numbers with fractions are read in millionths: above it they would not fit into int64."""


def too_large(array: pa.Array) -> bool:
    """Whether numbers with fractions cannot be read as times."""
    largest = pc.max(pc.abs(array)).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    return largest is not None and LARGEST < largest < float("inf")


def numbers_of_times(array: pa.Array) -> np.ndarray:
    """`[n]` int64: numbers as they are, those with fractions in millionths, dates as such.

    >>> numbers_of_times(pa.array([1.5, 2]))
    array([1500000, 2000000])
    """
    kind = id_type(array.type)
    if is_string(kind):
        array = from_text(array)
    elif pa.types.is_floating(kind):
        array = pc.round(pc.multiply(array.cast(pa.float64()), 1e6))  # pyright: ignore[reportAttributeAccessIssue]
    elif pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms"))
    return array.cast(pa.int64()).to_numpy(zero_copy_only=False)


def times_of_numbers(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """The times of this type that `numbers_of_times` made these numbers of.

    >>> times_of_numbers(np.array([1500000]), pa.float64()).to_pylist()
    [1.5]
    """
    if pa.types.is_floating(kind):
        return pa.array(numbers / 1e6)
    if pa.types.is_date(kind):
        return pa.array(numbers).cast(pa.timestamp("ms")).cast(kind)
    return pa.array(numbers).cast(kind)


def from_text(array: pa.Array) -> pa.Array:
    """Strings as numbers, or else as times with or without a zone."""
    for kind in (pa.int64(), pa.timestamp("us")):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            continue
    return array.cast(pa.timestamp("us", "UTC"))


def first_that_is_no_time(array: pa.Array) -> int:
    """The place of the first value that is not a time; else of the first that is not written as
    the one before it.
    """
    if pa.types.is_floating(array.type):
        return int((~np.isfinite(array.to_numpy(zero_copy_only=False))).argmax())
    ways: list[str] = []
    for place, value in enumerate(array):
        try:
            kind = str(from_text(pa.array([str(value)])).type)
        except pa.ArrowInvalid:
            return place
        ways.append(kind)
    return next((place for place, kind in enumerate(ways) if kind != ways[0]), 0)
