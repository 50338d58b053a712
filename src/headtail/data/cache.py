"""A cache of parsed data: folders of raw arrays, keyed by content, written aside, then renamed."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from headtail.data.shards import shards_of
from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""Raised whenever the arrays that readers write change, so that old entries are not read."""
ABANDONED = 86_400
"""Seconds after which a half-written entry counts as abandoned."""


@runtime_checkable
class Keyed(Protocol):
    """Data that know the digest of their content, as JSON."""

    def digest(self) -> Any:
        """Changes with the content."""


@dataclass(frozen=True, eq=False)
class Entry:
    """Arrays and facts of one cache entry.

    Arrays are memory-mapped, and changes to them never reach the disk.
    """

    arrays: dict[str, Tensor]
    facts: dict[str, Any]
    key: str


class Store:
    """An entry being written: arrays grow by appending, so that memory stays bounded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dtypes = {}
        self.shapes = {}
        self.facts = {}
        self._scratch = folder / "scratch"

    def append(self, name: str, array: np.ndarray) -> None:
        """Add rows to the array `name`."""
        dtype = array.dtype.str
        tail = list(array.shape[1:])
        same_dtype = self.dtypes.setdefault(name, dtype) == dtype
        if not same_dtype or self.shapes.setdefault(name, [0, *tail])[1:] != tail:
            raise ValueError(f"array {name} changed its dtype or width while it was written")
        self.shapes[name][0] += len(array)
        with (self.folder / name).open("ab") as file:
            np.ascontiguousarray(array).tofile(file)

    def scratch(self) -> Path:
        """A folder for files that are needed until the entry is complete."""
        self._scratch.mkdir(exist_ok=True)
        return self._scratch

    def close(self) -> None:
        """Write down the types and shapes of the arrays, and the facts."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        about = {"dtypes": self.dtypes, "shapes": self.shapes, "facts": self.facts}
        (self.folder / "about.json").write_text(json.dumps(about))


def cached(
    files: Iterable[Path | Keyed], recipe: dict[str, Any], build: Callable[[Store], None]
) -> Entry:
    """The entry for these files read with this recipe; `build` writes it the first time.

    Args:
        files: what is read; the key holds a digest of their content.
        recipe: everything else that decides the result, as JSON: reader, options.
        build: appends arrays to a `Store` and sets its `facts`. If it fails, nothing stays behind.
    """
    key = key_of(files, recipe)
    folder = cache_folder() / key
    if not (folder / "about.json").exists():
        _write(folder, build)
    return _read(folder, key)


def key_of(files: Iterable[Path | Keyed], recipe: dict[str, Any]) -> str:
    """A digest of the content of the files, with all their shards, and of the recipe."""
    content = []
    for file in files:
        if isinstance(file, Path):
            digests = [digest(shard) for shard in shards_of(file)]
            content.append(digests[0] if len(digests) == 1 else digests)
        else:
            content.append(file.digest())
    text = json.dumps([VERSION, content, recipe], sort_keys=True)
    return _blake(text)


def content_of(paths: Iterable[Path]) -> str:
    """A digest of the content of files, with all their shards, however they are read."""
    return _blake(json.dumps([[digest(shard) for shard in shards_of(path)] for path in paths]))


def _blake(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest(path: Path) -> str:
    """A digest of a file's content, remembered while its size, time and inode stay the same."""
    try:
        stat = path.stat()
        mark = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        memo = cache_folder() / "digests" / _blake(mark)
        if memo.exists():
            return memo.read_text()
        with path.open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be read: {error.strerror}.") from error
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        aside = memo.with_name(f"{memo.name}.{uuid.uuid4().hex}")
        aside.write_text(content)
        aside.replace(memo)
    except OSError as error:
        raise _not_writable(error) from error
    return content


def _write(folder: Path, build: Callable[[Store], None]) -> None:
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        aside.mkdir(parents=True)
        store = Store(aside)
        build(store)
        store.close()
        if (folder / "about.json").exists():  # another process was faster, with the same content
            return
        shutil.rmtree(folder, ignore_errors=True)  # what an older, broken write may have left
        aside.rename(folder)
    except OSError as error:
        if (folder / "about.json").exists():
            return
        raise _not_writable(error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _sweep(folder.parent)


def _sweep(cache: Path) -> None:
    """Remove what killed processes have left half-written."""
    for left in cache.glob(".*.*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _read(folder: Path, key: str) -> Entry:
    try:
        about = json.loads((folder / "about.json").read_text())
        arrays = {
            name: _map(folder / name, dtype, about["shapes"][name])
            for name, dtype in about["dtypes"].items()
        }
    except (OSError, ValueError, KeyError) as error:
        raise HeadtailError(
            f"The cache entry `{folder}` is damaged. Delete that folder and start again."
        ) from error
    return Entry(arrays, about["facts"], key)


def _map(path: Path, dtype: str, shape: list[int]) -> Tensor:
    import torch  # not above: processes that only read tables start faster without it

    if 0 in shape:  # nothing to map
        return torch.from_numpy(np.empty(shape, dtype))
    return torch.from_numpy(np.memmap(path, dtype, mode="c", shape=tuple(shape)))


def _not_writable(error: OSError) -> HeadtailError:
    return HeadtailError(
        f"The cache cannot be written ({error.strerror or error}, "
        f"`{error.filename or cache_folder()}`). "
        "Make room, or set the environment variable HEADTAIL_CACHE to a folder that has some."
    )
