"""Names of items, users and labels: their ids, and keeping them in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.cache import Entry, Store
from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder


@dataclass(frozen=True)
class Vocabulary:
    """Different names in order; the id of a name is its place.

    >>> Vocabulary.of([pa.array([30, 10]), pa.array([20, 10])]).ids(pa.array([10, 99, 30]))
    array([ 0, -1,  2], dtype=int32)
    """

    names: pa.Array

    @classmethod
    def of(cls, parts: Iterable[pa.Array]) -> Vocabulary:
        """Every name that occurs, sorted: numbers by size, strings by their bytes."""
        names: pa.Array | None = None
        for part in parts:
            new = part.unique()
            names = new if names is None else pa.concat_arrays([names, new]).unique()
        return cls(pa.array([], pa.int64()) if names is None else names.sort())

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, values: pa.Array) -> np.ndarray:
        """`[n]` int32 ids, −1 for names that are not in it."""
        return pc.index_in(values, value_set=self.names).fill_null(-1).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]

    def keep(self, which: np.ndarray) -> Vocabulary:
        """Only these names (`[L]` booleans)."""
        return Vocabulary(self.names.filter(pa.array(which)))

    def save(self, store: Store) -> None:
        """Save the names in a cache entry, unless they are the numbers 0 … L − 1."""
        numbers = pa.types.is_integer(self.names.type)
        if not numbers or not np.array_equal(self.names.to_numpy(), np.arange(len(self))):
            save_ids(store, "names", self.names)


def label_names(entry: Entry) -> list[str] | list[int] | None:
    """The names that `Vocabulary.save` saved: numbers where the source has numbers."""
    names = saved_ids(entry, "names")
    return None if names is None else names.to_pylist()


def save_ids(store: Store, name: str, ids: pa.Array) -> None:
    """Append ids to a cache entry: numbers as they are, strings as their lengths and bytes."""
    if pa.types.is_integer(ids.type):
        store.append(name, ids.to_numpy())
        return
    # A slice is copied, so that only its own part of the bytes is saved.
    ids = pa.concat_arrays([ids.cast(pa.large_string())])
    ends, text = ids.buffers()[1:]
    if len(ids):
        ends = np.frombuffer(ends, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    else:
        ends = np.zeros(1, np.int64)
    store.append(f"{name}_lengths", np.diff(ends))
    store.append(name, np.frombuffer(text or b"", np.uint8)[ends[0] : ends[-1]])


def saved_ids(entry: Entry, name: str) -> pa.Array | None:
    """The ids that `save_ids` saved, or None.

    Arrow trusts lengths and bytes unless it is asked to look at them, and checksums show damage,
    not malice: it is asked.
    """
    if name not in entry.arrays:
        return None
    lengths = entry.arrays.get(f"{name}_lengths")
    try:
        ids = _as_ids(entry.arrays[name].numpy(), None if lengths is None else lengths.numpy())
        ids.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise HeadtailError(
            f"The cache entry `{cache_folder() / entry.key}` is damaged (`{name}` holds no names). "
            "Delete it: it is made again."
        ) from error
    return ids


def _as_ids(data: np.ndarray, lengths: np.ndarray | None) -> pa.Array:
    """Numbers, or strings of these lengths."""
    if lengths is None:
        return pa.array(data)
    ends = np.r_[0, np.cumsum(lengths, dtype=np.int64)]
    return pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))
