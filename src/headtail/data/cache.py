"""A cache of parsed data: folders of raw arrays with checksums, keyed by content, written aside,
then renamed.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from headtail.data.digests import Seen, checksum_of, digest_of, identity_of, look_at
from headtail.data.shards import shards_of
from headtail.errors import HeadtailError, cannot_read
from headtail.files.atomic import make_folder, sync, sync_all, write_memo
from headtail.files.cache_folder import cache_folder
from headtail.files.checksums import DamagedWarning, new_checksum, opened, sealed
from headtail.files.leftovers import remove, sweep, temporary_name

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 2
"""Raised whenever the arrays that readers write change, so that old entries are not read."""
ABOUT = "about.json"
"""An entry's last file: types, shapes and checksums of its arrays, and its facts."""
VERIFIED = "verified.json"
"""The identities of an entry's files when they last matched their checksums."""


class _DamagedError(Exception):
    """An entry cannot be used."""


_DAMAGED = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What reading an entry that is not whole may raise."""


@runtime_checkable
class Keyed(Protocol):
    """Data that know the digest of their content."""

    def digest(self) -> Any:
        """Changes with the content; JSON."""

    def files(self) -> list[Path]:
        """Those that they are read from; none for an object in memory."""
        ...


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
        self._checksums = {}
        self._scratch = folder / "scratch"

    def append(self, name: str, array: np.ndarray) -> None:
        """Add rows to the array `name`."""
        dtype = array.dtype.str
        tail = list(array.shape[1:])
        same_dtype = self.dtypes.setdefault(name, dtype) == dtype
        if not same_dtype or self.shapes.setdefault(name, [0, *tail])[1:] != tail:
            raise ValueError(f"array {name} changed its dtype or width while it was written")
        self.shapes[name][0] += len(array)
        array = np.ascontiguousarray(array)
        checksum = self._checksums.setdefault(name, new_checksum())
        if array.size:
            checksum.update(array.reshape(-1).view(np.uint8))
        with (self.folder / name).open("ab") as file:
            array.tofile(file)

    def scratch(self) -> Path:
        """A folder for files that are needed until the entry is complete."""
        self._scratch.mkdir(exist_ok=True)
        return self._scratch

    def close(self) -> None:
        """Write down the types, shapes and checksums of the arrays, and the facts."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        checksums = {name: checksum.hexdigest() for name, checksum in self._checksums.items()}
        about = {
            "dtypes": self.dtypes,
            "shapes": self.shapes,
            "checksums": checksums,
            "facts": self.facts,
        }
        (self.folder / ABOUT).write_text(sealed(about))
        identities = {name: identity_of(self.folder / name) for name in self.dtypes}
        (self.folder / VERIFIED).write_text(sealed(identities))


def cached(
    files: Iterable[Path | Keyed], recipe: dict[str, Any], build: Callable[[Store], None]
) -> Entry:
    """The entry for these files read with this recipe; `build` writes it the first time.

    An entry that does not match its checksums is made again, with a warning. A file that changes
    while `build` reads it is refused, so that the content is always that of the key.

    Args:
        files: what is read; the key holds a digest of their content.
        recipe: everything else that decides the result, as JSON: reader, options.
        build: appends arrays to a `Store` and sets its `facts`. If it fails, nothing stays behind.
    """
    seen: list[Seen] = []
    key = _key(files, recipe, seen)
    folder = cache_folder() / key
    if (folder / ABOUT).exists():
        try:
            return _read(folder, key)
        except _DamagedError as damage:
            remove(folder)
            warnings.warn(
                f"A part of the cache was damaged ({damage}) and is made again.",
                DamagedWarning,
                stacklevel=2,
            )
    _write(folder, build, seen)
    try:
        return _read(folder, key)
    except _DamagedError as damage:
        raise HeadtailError(
            f"The cache entry `{folder}` is damaged just after it was written ({damage}). Set the "
            "environment variable HEADTAIL_CACHE to a folder on another disk."
        ) from damage


def key_of(files: Iterable[Path | Keyed], recipe: dict[str, Any]) -> str:
    """A digest of the content of the files, with all their shards, and of the recipe."""
    return _key(files, recipe, [])


def _key(files: Iterable[Path | Keyed], recipe: dict[str, Any], seen: list[Seen]) -> str:
    """As `key_of`; notes the files that were looked at."""
    content = []
    for file in files:
        if isinstance(file, Path):
            shards = [look_at(shard) for shard in shards_of(file)]
            seen += shards
            digests = [shard.digest for shard in shards]
            content.append(digests[0] if len(digests) == 1 else digests)
        else:
            content.append(file.digest())
            seen += map(look_at, file.files())
    return digest_of([VERSION, content, recipe])


def _write(folder: Path, build: Callable[[Store], None], seen: list[Seen]) -> None:
    aside = temporary_name(folder)
    try:
        make_folder(folder.parent)
        sweep(folder.parent)
        aside.mkdir()
        store = Store(aside)
        build(store)
        store.close()
        for file in seen:
            file.check()
        if (folder / ABOUT).exists():  # another process was faster, with the same content
            return
        remove(folder)  # what an older, broken write may have left
        sync_all(aside)
        aside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        if (folder / ABOUT).exists():
            return
        raise _not_writable(error) from error
    finally:
        remove(aside)


def _read(folder: Path, key: str) -> Entry:
    try:
        about = opened((folder / ABOUT).read_text(encoding="utf-8"))
        _verify(folder, about["checksums"])
        arrays = {
            name: _map(folder / name, dtype, about["shapes"][name])
            for name, dtype in about["dtypes"].items()
        }
    except _DAMAGED as error:
        raise _DamagedError(str(error) or type(error).__name__) from error
    except OSError as error:  # the entry may be whole, and the system short of something
        raise cannot_read(folder, error) from error
    return Entry(arrays, about["facts"], key)


def _verify(folder: Path, checksums: dict[str, str]) -> None:
    """Compare the arrays with their checksums, once for each identity of their files."""
    identities = {name: list(identity_of(folder / name)) for name in checksums}
    memo = folder / VERIFIED
    with suppress(OSError, ValueError):
        if opened(memo.read_text(encoding="utf-8")) == identities:
            return
    for name, wanted in checksums.items():
        if checksum_of(folder / name) != wanted:
            raise ValueError(f"`{name}` does not match its checksum")
    write_memo(memo, sealed(identities))


def _map(path: Path, dtype: str, shape: list[int]) -> Tensor:
    import torch  # not above: processes that only read tables start faster without it

    if path.stat().st_size != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"`{path.name}` has another size than its shape")
    if 0 in shape:  # nothing to map
        return torch.from_numpy(np.empty(shape, dtype))
    return torch.from_numpy(np.memmap(path, dtype, mode="c", shape=tuple(shape)))


def _not_writable(error: OSError) -> HeadtailError:
    return HeadtailError(
        f"The cache cannot be written ({error.strerror or error}, "
        f"`{error.filename or cache_folder()}`). "
        "Make room, or set the environment variable HEADTAIL_CACHE to a folder that has some."
    )
