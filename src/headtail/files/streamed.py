"""safetensors files that are written block by block and read where they lie: no tensor is held
twice.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headtail.errors import HeadtailError
from headtail.files.regular import regular

BLOCK = 2**24
"""Bytes that are written, or read for a checksum, at a time."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers by their names in such files."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ORDER = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
"""Types of numbers in the order that safetensors gives their tensors in a file."""


@dataclass(frozen=True)
class Piece:
    """A tensor in a file.

    Attributes:
        dtype: of its numbers.
        shape: its axes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def as_safetensors_orders(pieces: dict[str, Piece]) -> dict[str, Piece]:
    """Tensors in the order in which safetensors writes them: wide numbers first, so that all begin
    where memory that is mapped can be read; then by name.
    """
    places = {DTYPES[name]: place for place, name in enumerate(_ORDER)}
    by = sorted(pieces, key=lambda name: (places.get(pieces[name].dtype, 0), name))
    return {name: pieces[name] for name in by}


def header_of(
    pieces: dict[str, Piece], metadata: dict[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """How a file with these tensors begins, and the first byte of each of them in the file."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    starts = {}
    place = 0
    for name, piece in pieces.items():
        if piece.dtype not in _NAMES:
            raise HeadtailError(
                f"`{name}` has the type {piece.dtype}, which cannot be saved. Convert it first."
            )
        starts[name] = place
        entries[name] = {
            "dtype": _NAMES[piece.dtype],
            "shape": list(piece.shape),
            "data_offsets": [place, place + piece.size],
        }
        place += piece.size
    text = json.dumps(entries, separators=(",", ":")).encode()  # as safetensors writes it
    text += b" " * (-len(text) % 8)  # numbers begin where memory that is mapped can be read
    start = 8 + len(text)
    begin = len(text).to_bytes(8, "little") + text
    return begin, {name: start + place for name, place in starts.items()}


def write_stream(path: Path, begin: bytes, blocks: Iterable[memoryview], checksum: Any) -> int:
    """Write a file block by block and force it to disk.

    Args:
        path: the file.
        begin: what `header_of` returned.
        blocks: the bytes of all tensors, in order.
        checksum: is updated with all that is written.

    Returns:
        the size of the file.
    """
    size = len(begin)
    with path.open("wb") as file:
        file.write(begin)
        checksum.update(begin)
        for block in blocks:
            file.write(block)
            checksum.update(block)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return size


def blocks_of(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, wherever it is, a few rows at a time."""
    tensor = tensor.detach()
    if not tensor.numel():
        return
    rows = tensor if tensor.dim() else tensor.reshape(1)
    width = rows[0].numel() * rows.dtype.itemsize
    for part in rows.split(max(1, BLOCK // width)):
        yield as_bytes_of(part)


def as_bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a small tensor."""
    on_host = tensor.contiguous().cpu().reshape(-1).view(torch.uint8)
    return memoryview(on_host.numpy())  # pyright: ignore[reportArgumentType]


def pieces_in(path: Path) -> dict[str, tuple[Piece, int]]:
    """The tensors of a safetensors file, and the first byte of each of them in the file.

    A ValueError says what is wrong with a file that is not one.
    """
    from safetensors import SafetensorError, safe_open

    try:
        regular(path).open("rb").close()  # which says why a file cannot be read
        with safe_open(path, framework="pt"):  # which looks at all places in it
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
    entries.pop("__metadata__", None)
    pieces = {}
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"`{name}` has numbers of the unknown type {entry['dtype']!r}")
        piece = Piece(DTYPES[entry["dtype"]], tuple(entry["shape"]))
        pieces[name] = piece, 8 + size + entry["data_offsets"][0]
    return pieces


def mapped(path: Path, piece: Piece, start: int) -> Tensor:
    """A tensor of a file that is read only where it is looked at; it must not be written to.

    A ValueError says so if the file ends before the tensor does.
    """
    size = regular(path).stat().st_size
    if start < 0 or start + piece.size > size:
        raise ValueError(f"`{path.name}` is shorter than it should be")
    if not piece.size:
        return torch.empty(piece.shape, dtype=piece.dtype)
    # Read-only: a private copy of a file larger than memory would be refused by the system.
    content = np.memmap(path, np.uint8, "r", start, (piece.size,))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        numbers = torch.from_numpy(content)
    if start % piece.dtype.itemsize:  # files of others need not be aligned
        numbers = numbers.clone()
    return numbers.view(piece.dtype).reshape(piece.shape)


def checksum_of_file(path: Path, checksum: Any) -> str:
    """The checksum of all bytes of a file."""
    with regular(path).open("rb") as file:
        while block := file.read(BLOCK):
            checksum.update(block)
    return checksum.hexdigest()
