"""Arrays in `.npy` and `.npz` files, checked against the size of the file before they are made.

numpy's own reader evaluates headers as Python and allocates what they ask for. Here a header is the
one form that numpy writes, and an array is as large as the bytes that are there.
"""

from __future__ import annotations

import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from headtail.data.packed import MAX_EXPANSION, too_expanded
from headtail.errors import HeadtailError

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    RuntimeError,  # encrypted, or packed in a way that Python cannot unpack
)
"""What reading a damaged archive may raise."""
_HEADER = re.compile(
    rb"\{'descr': '(?P<kind>[<>|=][a-zA-Z?]\d{0,4})', 'fortran_order': (?P<columns>True|False), "
    rb"'shape': \((?P<shape>(\d{1,19}L?(, ?|(?=\))))*)\), ?\}\s*"
)
_LONGEST_HEADER = 1 << 12
UNCHECKED = 64 << 20
"""Bytes that any compressed array may become."""
_AT_ONCE = 1 << 22
"""Bytes read at a time."""


class Header(NamedTuple):
    """What a `.npy` file says of its array.

    Attributes:
        dtype: of its values.
        shape: its size in each dimension.
        by_column: whether it lies column by column.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    by_column: bool

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in a `.npz` file."""
    with _archive(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def npz_array(path: Path, name: str, max_expansion: float = MAX_EXPANSION) -> np.ndarray:
    """An array of a `.npz` file.

    Args:
        path: of the file.
        name: of the array.
        max_expansion: how many times the size of the file an array may have, beyond 64 MiB.
    """
    with _archive(path) as archive:
        names = archive.namelist()
        member = archive.getinfo(f"{name}.npy" if f"{name}.npy" in names else name)
        if member.file_size > max(UNCHECKED, max_expansion * path.stat().st_size):
            raise too_expanded(path, max_expansion, UNCHECKED)
        with archive.open(member) as file:
            return read_npy(file, member.file_size)


def npy_array(path: Path) -> np.ndarray:
    """The array of a `.npy` file."""
    with _sentences(path), path.open("rb") as file:
        return read_npy(file, path.stat().st_size)


def read_npy(file: IO[bytes], size: int) -> np.ndarray:
    """The array in an open file of so many bytes; a `ValueError` says what is wrong with it."""
    header, start = _header(file)
    if header.size > size - start:
        raise ValueError(
            f"an array of shape {_shown(header.shape)} needs {header.size:,} bytes, but it has "
            f"{max(0, size - start):,}"
        )
    room = np.empty(header.size, np.uint8)
    place = room.data
    done = 0
    while done < len(room):
        read = file.read(min(_AT_ONCE, len(room) - done))
        if not read:
            raise ValueError("an array is cut off")
        place[done : done + len(read)] = read
        done += len(read)
    values = room.view(header.dtype) if header.dtype.itemsize else np.empty(0, header.dtype)
    if header.by_column:
        return values.reshape(header.shape[::-1]).T
    return values.reshape(header.shape)


def matrix_rows(path: Path, max_expansion: float = MAX_EXPANSION) -> tuple[list[int], list[int]]:
    """Where rows begin, and the columns of the values, of a sparse matrix that scipy has saved.

    scipy's own conversions trust the ids in the file, and write outside of memory where they lie.
    """
    wrong = HeadtailError(f"`{path}` is not a sparse matrix. Save it with `scipy.sparse.save_npz`.")
    held = {"format", "shape", "data"} <= set(npz_names(path))
    if not held:
        raise wrong
    kind = npz_array(path, "format", max_expansion)
    shape = npz_array(path, "shape", max_expansion)
    layout = kind.item() if kind.size == 1 and kind.dtype.kind in "SU" else ""
    layout = layout.decode("latin1") if isinstance(layout, bytes) else layout
    if layout not in ("csr", "csc", "coo") or shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise wrong
    names = ("row", "col") if layout == "coo" else ("indptr", "indices")
    if not {*names} <= {*npz_names(path)}:
        raise wrong
    first, second = (npz_array(path, name, max_expansion) for name in names)
    if not all(array.ndim == 1 and array.dtype.kind in "iu" for array in (first, second)):
        raise wrong
    first, second = first.astype(np.int64), second.astype(np.int64)
    number = int(shape[0])
    if layout != "coo":
        lines = number if layout == "csr" else int(shape[1])
        rising = len(first) == lines + 1 and first[0] == 0 and bool((np.diff(first) >= 0).all())
        if not rising or first[-1] != len(second):
            raise wrong
    if layout == "csr":
        return first.tolist(), second.tolist()
    columns = np.arange(len(first) - 1).repeat(np.diff(first)) if layout == "csc" else second
    rows = second if layout == "csc" else first
    few = 0 <= number <= max(UNCHECKED, 100 * len(rows))
    if not few or len(rows) != len(columns) or (rows < 0).any() or (rows >= number).any():
        raise wrong
    order = np.lexsort((columns, rows))
    offsets = np.r_[0, np.cumsum(np.bincount(rows, minlength=number))]
    return offsets.tolist(), columns[order].tolist()


def _header(file: IO[bytes]) -> tuple[Header, int]:
    """The header of a `.npy` file, and its length."""
    start = file.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise ValueError("an array does not begin as numpy's arrays do")
    layout = "<H" if start[6] == 1 else "<I"
    length = file.read(struct.calcsize(layout))
    (number,) = struct.unpack(layout, length)
    if number > _LONGEST_HEADER:
        raise ValueError(f"the header of an array has {number:,} bytes")
    written = file.read(number)
    header = _HEADER.fullmatch(written)
    if header is None or header["kind"][1:2] == b"O":
        objects = b"'|O" in written
        kind = "Python objects, which are not read" if objects else "something else than numbers"
        raise ValueError(f"an array holds {kind}")
    try:
        dtype = np.dtype(header["kind"].decode())
    except TypeError as error:
        raise ValueError(f"an array holds {header['kind'].decode()}") from error
    shape = tuple(int(size.rstrip(b"L")) for size in re.findall(rb"\d+L?", header["shape"]))
    return Header(dtype, shape, header["columns"] == b"True"), len(start) + len(length) + number


def _shown(shape: tuple[int, ...]) -> str:
    return f"{list(shape[:4])}" if len(shape) <= 4 else f"{len(shape)} dimensions"


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with _sentences(path), zipfile.ZipFile(path) as archive:
        yield archive


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into one sentence."""
    try:
        yield
    except HeadtailError:
        raise
    except FileNotFoundError as error:
        raise HeadtailError(
            f"`{path}` is not a file. Name a `.safetensors` or `.npz` file."
        ) from error
    except _UNREADABLE as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        why = " ".join(why.split()).rstrip(".")[:200] or type(error).__name__
        raise HeadtailError(
            f"`{path}` is not a readable {path.suffix} file of plain arrays of numbers: {why}. "
            "Write or copy it again."
        ) from error
