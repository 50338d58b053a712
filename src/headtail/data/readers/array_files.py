"""Files of arrays, `.safetensors` or `.npz`, and the parts of a data set in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headtail.data.packed import MAX_EXPANSION
from headtail.data.readers.npz_files import npz_array, npz_names
from headtail.errors import HeadtailError
from headtail.files.regular import named_in_utf8

_UNREADABLE = (
    SafetensorError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)
"""What reading a damaged file may raise."""


@dataclass(frozen=True)
class Part:
    """Training or test points in a file."""

    path: Path
    prefix: str
    max_expansion: float = MAX_EXPANSION

    @property
    def features(self) -> Tensor:
        """`[N, D]`, as they are in the file."""
        return _array(self.path, f"{self.prefix}features", self.max_expansion)

    @property
    def mapped(self) -> bool:
        """Whether its features are memory-mapped, not copied."""
        return _is_safetensors(self.path) and self.features.dtype == torch.float32

    def whole(self, name: str) -> Tensor:
        """An array of whole numbers, as int64; one of booleans, as it is."""
        array = _array(self.path, f"{self.prefix}{name}", self.max_expansion)
        if array.is_floating_point() or array.is_complex():
            raise self.wrong(
                name, f" must hold whole numbers, but holds {type_of(array)}. Save it as int64."
            )
        if array.dtype == torch.uint64 and bool((array.view(torch.int64) < 0).any()):
            raise self.wrong(name, " has numbers above int64. Number labels from 0.")
        return array if array.dtype == torch.bool else array.long()

    def wrong(self, name: str, sentence: str) -> HeadtailError:
        """An error about an array of this part."""
        return HeadtailError(f"`{self.path}`, `{self.prefix}{name}`{sentence}")


def parts_of(
    train: Path, test: Path | None, max_expansion: float = MAX_EXPANSION
) -> dict[str, Part]:
    """The parts that these files hold, by their names: train, and test where there is one."""
    names = {path: names_in(path) for path in (train, test) if path is not None}
    prefix = "train_" if "train_features" in names[train] else ""
    parts = {"train": Part(train, prefix, max_expansion)}
    if test is not None or "test_features" in names[train]:
        path = test or train
        prefix = "test_" if "test_features" in names[path] else ""
        parts["test"] = Part(path, prefix, max_expansion)
    for role, part in parts.items():
        prefixed = [name for name in names[part.path] if name.startswith(part.prefix)]
        held = {name.removeprefix(part.prefix) for name in prefixed}
        ragged = {"label_values", "label_offsets"}
        labelled = "labels" in held or ragged <= held
        unlabelled_test = role == "test" and not held & ragged
        if "features" not in held or not (labelled or unlabelled_test):
            listed = ", ".join(f"`{name}`" for name in names[part.path]) or "no arrays"
            raise HeadtailError(
                f"`{part.path}` holds {listed}, but `{part.prefix}features` and "
                f"`{part.prefix}labels` are needed."
            )
    return parts


def _is_safetensors(path: Path) -> bool:
    return path.suffix.lower() == ".safetensors"


def names_in(path: Path) -> list[str]:
    """The names of the arrays in a file."""
    if not _is_safetensors(path):
        return npz_names(path)
    with _readable(path), safe_open(named_in_utf8(path), framework="pt") as file:
        return list(file.keys())


def _array(path: Path, name: str, max_expansion: float) -> Tensor:
    """An array of a file; those of safetensors are memory-mapped."""
    if _is_safetensors(path):
        with _readable(path), safe_open(named_in_utf8(path), framework="pt") as file:
            return file.get_tensor(name)
    array = npz_array(path, name, max_expansion)
    if array.dtype.kind in "US":
        raise HeadtailError(
            f"`{path}`, `{name}` holds strings, but arrays must hold numbers. Number them, or "
            "write a table with a column `label`."
        )
    with _readable(path):
        return torch.from_numpy(array)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise HeadtailError(
            f"`{path}` is not a file. Name a `.safetensors` or `.npz` file."
        ) from error
    except _UNREADABLE as error:
        raise HeadtailError(
            f"`{path}` is not a readable {path.suffix} file of plain arrays of numbers: "
            f"{str(error).rstrip('.')}. Write or copy it again."
        ) from error


def type_of(array: Tensor) -> str:
    """The name of an array's type."""
    return str(array.dtype).removeprefix("torch.")
