"""A column of labels in any form: lists, arrays, tensors, pandas, polars, Arrow."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.core.targets import Pairs, Ragged, Target
from headtail.errors import HeadtailError, PythonName

Names: TypeAlias = list[str] | list[int]
"""The name of each label: all strings, or all whole numbers."""
LISTS = (list, tuple, set, frozenset, np.ndarray, Tensor)


class Column(NamedTuple):
    """A column as places in a list of its different values.

    Attributes:
        codes: `[p]` the place of each value among `names`, −1 where it is missing.
        names: the different values, in any order.
        offsets: `[n + 1]` where the values of each row begin; None for one value per row.
        in_order: whether the order of `names` is the user's own, as for pandas' categories.
    """

    codes: Int64[np.ndarray, " p"]
    names: Names
    offsets: Int64[np.ndarray, " n1"] | None = None
    in_order: bool = False

    def row_of(self, place: int) -> int:
        """The row of a value."""
        if self.offsets is None:
            return place
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


def read_column(column: Any, name: str = "column") -> Column:
    """Read a column of strings or whole numbers, or of lists of them.

    Args:
        column: a list, tuple, numpy array, tensor, pandas or polars series, Arrow array or chunked
            array.
        name: of the argument, for errors.

    >>> read_column(["b", "a", "b"])
    Column(codes=array([0, 1, 0]), names=['b', 'a'], offsets=None, in_order=False)
    """
    library = type(column).__module__.partition(".")[0]
    if library == "pyarrow" and hasattr(column, "dictionary_encode"):
        return _of_arrow(column, name)
    if library == "pandas" and hasattr(column, "dtype"):
        return _of_pandas(column, name)
    if library == "polars" and hasattr(column, "to_list"):
        whole = column.dtype.is_integer() and not column.null_count()
        return _of_array(column.to_numpy(), name) if whole else _of_list(column.to_list(), name)
    if isinstance(column, Tensor) and not column.is_nested:
        return _of_array(column.detach().cpu().numpy(), name)
    if isinstance(column, np.ndarray):
        return _of_array(column, name)
    if isinstance(column, list | tuple) and not isinstance(column, Ragged):
        return _of_list(list(column), name)
    raise HeadtailError(
        f"`{name}` must be a column of labels (a list, an array, a tensor, a pandas or polars "
        f"series, or an Arrow array), but got {type(column).__name__}. Pass one column, for "
        'example `frame["item"]`.'
    )


def as_target(target: Any) -> Target:
    """Label ids in any form as a tensor or `Ragged`; a sparse matrix has a column per label."""
    if isinstance(target, Tensor | Ragged | Pairs):  # a `Ragged` is a tuple too
        return target
    if hasattr(target, "tocsr"):
        matrix = target.tocsr()
        row, label = matrix.nonzero()  # without zeros that are stored
        offsets = np.zeros(matrix.shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=matrix.shape[0]), out=offsets[1:])
        order = np.argsort(row, kind="stable")
        return Ragged(torch.from_numpy(label[order].astype(np.int64)), torch.from_numpy(offsets))
    if isinstance(target, np.ndarray) and target.dtype.kind in "iub":
        whole = target if target.dtype == bool else target.astype(np.int64, copy=False)
        return torch.from_numpy(whole)
    if isinstance(target, list | tuple | np.ndarray) or _is_series(target):
        return _ids_in(read_column(target, "target"))
    return target


def _is_series(target: Any) -> bool:
    library = type(target).__module__.partition(".")[0]
    return library in ("pandas", "polars", "pyarrow")


def _ids_in(column: Column) -> Tensor | Ragged:
    """The numbers of a column, which are label ids."""
    refuse_missing(column, "target")
    if column.names and isinstance(column.names[0], str):
        raise HeadtailError(
            f"`target` must hold label ids, but holds strings such as {column.names[0]!r}. Write "
            "`labels = ",
            PythonName("Labels.from_column"),
            "(target)`, which numbers them, and `labels.ids(target)`.",
        )
    ids = torch.from_numpy(np.array(column.names, dtype=np.int64)[column.codes])
    return ids if column.offsets is None else Ragged(ids, torch.from_numpy(column.offsets))


def refuse_missing(column: Column, name: str) -> None:
    """Refuse a column with missing values."""
    missing = np.flatnonzero(column.codes < 0)
    if len(missing):
        raise HeadtailError(
            f"`{name}` has no value in row {column.row_of(int(missing[0])):,} ({len(missing):,} "
            "are missing in all). Drop those rows first."
        )


def _of_array(array: np.ndarray, name: str) -> Column:
    if array.ndim != 1:
        raise HeadtailError(
            f"`{name}` must have one value or one list per row, but got an array of shape "
            f"{list(array.shape)}. Pass one column, or a list of lists."
        )
    if array.dtype.kind in "iu":
        names, codes = np.unique(array, return_inverse=True)
        return Column(codes.astype(np.int64, copy=False), names.tolist())
    if array.dtype.kind in "UOT":
        return _of_list(array.tolist(), name)
    _refuse(name, str(array.dtype))


def _of_pandas(series: Any, name: str) -> Column:
    if str(series.dtype) != "category":
        # Where values are missing, whole numbers would become floats.
        return _of_array(series.to_numpy(dtype=object if series.isna().any() else None), name)
    categories = getattr(series, "cat", series)
    codes = np.asarray(categories.codes, dtype=np.int64)
    return Column(codes, _checked(categories.categories.tolist(), name), in_order=True)


def _of_arrow(array: Any, name: str) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.call_function("list_value_length", [array]).fill_null(0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        values = pc.call_function("list_flatten", [array])
        return _of_arrow(values, name)._replace(offsets=offsets)
    encoded = array if pa.types.is_dictionary(kind) else array.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        if not encoded.num_chunks:
            return Column(np.zeros(0, dtype=np.int64), [])
        encoded = encoded.unify_dictionaries().combine_chunks()
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy()
    return Column(codes, _checked(encoded.dictionary.to_pylist(), name))


def _of_list(rows: list[Any], name: str) -> Column:
    first = next((row for row in rows if row is not None), None)
    if not isinstance(first, LISTS):
        return _of_values(rows, name)
    # A row of a list column may have no labels, which is not a missing label.
    lists = [[] if row is None else row for row in rows]
    if not all(isinstance(row, LISTS) for row in lists):
        raise HeadtailError(f"`{name}` mixes lists with single values. Make every row a list.")
    plain = (row.tolist() if isinstance(row, np.ndarray | Tensor) else row for row in lists)
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in lists], out=offsets[1:])
    return _of_values(list(chain.from_iterable(plain)), name)._replace(offsets=offsets)


def _of_values(values: list[Any], name: str) -> Column:
    try:
        different = [value for value in dict.fromkeys(values) if not _is_missing(value)]
    except TypeError as error:
        raise HeadtailError(
            f"`{name}` must hold strings or whole numbers, but holds values that are neither: "
            f"{error}."
        ) from error
    names = _checked(different, name)
    place = {value: i for i, value in enumerate(different)}
    codes = np.fromiter((place.get(value, -1) for value in values), np.int64, len(values))
    return Column(codes, names)


def _is_missing(value: Any) -> bool:
    """None, NaN, pandas' NA."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _checked(names: list[Any], name: str) -> Names:
    """All strings or all whole numbers, as Python's own."""
    if all(isinstance(value, str) for value in names):
        return [str(value) for value in names]
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in names):
        return [int(value) for value in names]
    kinds = sorted({type(value).__name__ for value in names})
    _refuse(name, " and ".join(kinds))


def _refuse(name: str, kinds: str) -> NoReturn:
    raise HeadtailError(
        f"`{name}` must hold strings or whole numbers, but holds {kinds}. Make all values one or "
        "the other, for example with `.astype(str)`; numbers with missing values become floats in "
        "pandas, so drop missing values first."
    )
