"""What the columns of a Parquet file can hold."""

from __future__ import annotations

import pyarrow as pa


def holds_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type names things: whole numbers or strings, perhaps as bytes."""
    kind = id_type(kind)
    return pa.types.is_integer(kind) or is_string(kind) or is_bytes(kind)


def id_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a column, which may be stored as a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists."""
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_string(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes, as text does that is not UTF-8."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
