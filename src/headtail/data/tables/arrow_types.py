"""What the columns of a Parquet file can hold."""

from __future__ import annotations

import pyarrow as pa


def holds_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type names things: whole numbers or strings."""
    return pa.types.is_integer(id_type(kind)) or is_string(id_type(kind))


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
