"""What a checkpoint holds and where, as JSON: nothing is unpickled when it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headtail.distributed.checkpoint_folder import METADATA
from headtail.errors import HeadtailError
from headtail.files.checksums import new_checksum, opened, sealed
from headtail.files.regular import regular
from headtail.files.streamed import DTYPES, Piece, checksum_of_file

FORMAT = 1
"""Rises with every change that older versions cannot read."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Part:
    """A part of a tensor in a file.

    Attributes:
        at: where it begins in the whole tensor.
        shape: its axes.
        file: the name of the file.
        start: its first byte there.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int


@dataclass(frozen=True)
class SavedTensor:
    """A whole tensor, which lies in parts.

    Attributes:
        whole: its type and shape.
        parts: those that it was saved in.
    """

    whole: Piece
    parts: list[Part]


@dataclass(frozen=True)
class Contents:
    """All that a checkpoint holds.

    Attributes:
        description: what is no tensor: facts of the caller, numbers, options, the table's shape.
        files: size and checksum of each file.
        tensors: by their names.
    """

    description: dict[str, Any]
    files: dict[str, tuple[int, str]]
    tensors: dict[str, SavedTensor]

    def to_json(self) -> str:
        """With a checksum."""
        tensors = {
            name: {
                "dtype": _NAMES[tensor.whole.dtype],
                "shape": tensor.whole.shape,
                "parts": [[p.at, p.shape, p.file, p.start] for p in tensor.parts],
            }
            for name, tensor in self.tensors.items()
        }
        content = {
            "format": FORMAT,
            "description": self.description,
            "files": self.files,
            "tensors": tensors,
        }
        return sealed(content)


class DamagedError(Exception):
    """A checkpoint is not what was written."""


def read_contents(path: Path) -> Contents:
    """What a checkpoint says that it holds; `DamagedError` if that is not what was written."""
    try:
        text = regular(path / METADATA).read_text(encoding="utf-8")
        content = opened(text)
        version = content["format"]
    except FileNotFoundError as error:
        raise DamagedError(f"`{METADATA}` is missing") from error
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"`{METADATA}` cannot be read, {error}") from error
    if version != FORMAT:
        raise HeadtailError(
            f"`{path}` is a checkpoint of format {version!r}, but this version of headtail reads "
            f"format {FORMAT}. Load it with the version that saved it."
        )
    try:
        return _contents(content)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(f"`{METADATA}` has no sense: {error}") from error


def check_files(path: Path, contents: Contents, rank: int, ranks: int) -> None:
    """Compare this rank's share of a checkpoint's files with their checksums."""
    for name in sorted(contents.files)[rank::ranks]:
        size, checksum = contents.files[name]
        try:
            file = regular(path / name)
            if file.stat().st_size != size:
                raise DamagedError(
                    f"`{name}` has {file.stat().st_size:,} bytes instead of {size:,}"
                )
            if checksum_of_file(file, new_checksum()) != checksum:
                raise DamagedError(f"`{name}` does not match its checksum")
        except FileNotFoundError as error:
            raise DamagedError(f"`{name}` is missing") from error
        except OSError as error:
            raise HeadtailError(f"`{path / name}` cannot be read: {error.strerror}.") from error


def _contents(content: dict[str, Any]) -> Contents:
    files = {}
    for name, (size, checksum) in content["files"].items():
        _require("/" not in name and name not in {".", ".."}, f"the file {name!r}")
        files[name] = (int(size), str(checksum))
    tensors = {}
    for name, entry in content["tensors"].items():
        whole = Piece(DTYPES[entry["dtype"]], _axes(entry["shape"]))
        parts = [
            Part(_axes(at), _axes(shape), file, start) for at, shape, file, start in entry["parts"]
        ]
        for part in parts:
            _check_part(part, whole, files)
        covered = sum(math.prod(part.shape) for part in parts)
        _require(covered == math.prod(whole.shape), f"the parts of `{name}`")
        tensors[name] = SavedTensor(whole, parts)
    # So that no more memory is allocated than the files hold.
    held = sum(size for size, _ in files.values())
    _require(sum(tensor.whole.size for tensor in tensors.values()) <= held, "the size of tensors")
    _require(isinstance(content["description"], dict), "the description")
    return Contents(content["description"], files, tensors)


def _check_part(part: Part, whole: Piece, files: dict[str, tuple[int, str]]) -> None:
    """A part must lie inside its tensor and inside its file."""
    ends = zip(part.at, part.shape, whole.shape, strict=True)
    _require(all(at + size <= all_ for at, size, all_ in ends), "a part's place")
    _require(isinstance(part.start, int) and part.start >= 0, "a part's start")
    size = Piece(whole.dtype, part.shape).size
    _require(part.start + size <= files[part.file][0], "a part's end")


def _axes(numbers: list[int]) -> tuple[int, ...]:
    _require(all(isinstance(n, int) and n >= 0 for n in numbers), "a shape")
    return tuple(numbers)


def _require(true: bool, what: str) -> None:
    if not true:
        raise ValueError(f"{what} is impossible")


def as_text(dtype: torch.dtype) -> str:
    """A type of numbers in the words of torch, without its name."""
    return str(dtype).removeprefix("torch.")
