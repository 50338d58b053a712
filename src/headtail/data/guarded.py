"""Files of fragile formats are read in a child process first.

The libraries that read Parquet, Arrow and zstd files may abort the process when one bit of a file
is wrong, and a small file may ask for any amount of memory. So the child reads such files first,
within limits, and fills the cache; this process then takes the data from there. A memo in the cache
says which files a child has read, so that none is started for them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path

from headtail.data.child import Failure, Limits, run
from headtail.data.decode import ENDINGS as IMAGES
from headtail.data.digests import digest_of, identity_of
from headtail.data.file_kinds import HELD_OUT, TEST, TRAIN, VALIDATION
from headtail.data.packed import ending_of
from headtail.data.progress import Progress
from headtail.data.reading import DEFAULTS, LIMITS, Reading
from headtail.data.shards import shards_of
from headtail.errors import HeadtailError, Setting
from headtail.files.atomic import write_memo
from headtail.files.cache_folder import cache_folder
from headtail.files.leftovers import sweep

VERSION = 1
"""Raised when readers read other parts of files than before, so that old memos do not count."""
FRAGILE = (".parquet", ".pq", ".feather", ".arrow", ".ipc", ".npz")
"""Endings of files that are read in a child first."""
ZSTD = b"\x28\xb5\x2f\xfd"
"""The first bytes of files that are unpacked by Arrow, whatever their names."""
GIB = 1 << 30
MEMORY = 3 * GIB
"""Bytes that any file may take; of them, Arrow's allocator reserves one GiB at its start."""
MEMORY_PER_BYTE = 64
SECONDS = 20.0
"""Seconds that any file may take."""
SECONDS_PER_MIB = 8.0
_ROLES = re.compile("|".join((TRAIN, TEST, VALIDATION, HELD_OUT)))


def fragile_files(paths: Iterable[Path | None]) -> list[Path]:
    """The files at these paths that are of a fragile format, by their names and first bytes.

    Of a folder these are all that may be read: its own files, and those in `data` and in the
    folders of its parts.
    """
    files = (file for path in paths if path is not None for file in _files_at(path))
    return [file for file in dict.fromkeys(files) if _is_fragile(file)]


def read_in_child_first(
    work: Callable[[Progress | None], object],
    files: list[Path],
    reading: Reading = DEFAULTS,
    progress: Progress | None = None,
    *,
    purpose: str = "load",
) -> None:
    """Do `work` in a child process, unless one has read the same files for the same purpose.

    Args:
        work: reads the files, and so fills the cache.
        files: of fragile formats; without any, nothing is done.
        reading: how they are read, and the limits of the child.
        progress: called with what is being done and the share of it that is done.
        purpose: of reading.
    """
    if not files:
        return
    memo = cache_folder() / "safe" / _mark(files, reading, purpose)
    if memo.exists():
        return
    size = sum(file.stat().st_size for file in files)
    limits = limits_for(size, reading)
    # Both processes need them: imported before the fork, they are imported once.
    with suppress(ImportError):
        import_module("headtail.data.readers.sequences")
    failure = run(work, limits, progress)
    if failure is not None:
        sweep(cache_folder())  # what the child had begun to write
        raise _error(failure, files, limits, size) from _cause(failure)
    write_memo(memo, "")


def limits_for(size: int, reading: Reading) -> Limits:
    """The limits of a child that reads files of so many bytes in all.

    >>> limits_for(1 << 20, DEFAULTS).seconds
    28.0
    """
    memory = MEMORY + MEMORY_PER_BYTE * size
    if reading.max_memory is not None:
        memory = int(reading.max_memory * GIB)
    seconds = SECONDS + SECONDS_PER_MIB * size / (1 << 20)
    return Limits(memory, seconds if reading.max_seconds is None else reading.max_seconds)


def _files_at(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield from _with_shards(path)
        return
    files, folders = _held(path)
    yield from files
    for inside in folders:
        if inside.name == "data":
            yield from _files_at(inside)
        elif _ROLES.search(inside.name.lower()):
            yield from _held(inside)[0]


def _with_shards(path: Path) -> list[Path]:
    with suppress(HeadtailError):  # some are missing, and the reader says so
        return shards_of(path)
    return [path]


def _held(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files and the folders in a folder, without a look at each of very many images."""
    files: list[Path] = []
    folders: list[Path] = []
    with suppress(OSError), os.scandir(folder) as entries:  # if not, the reader says so
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = Path(entry.path)
            if path.is_dir() if entry.is_symlink() else entry.is_dir():
                folders.append(path)
            elif not entry.name.lower().endswith(IMAGES):
                files.append(path)
    return files, folders


def _is_fragile(path: Path) -> bool:
    ending = path.suffix.lower()
    if ending in IMAGES or not path.is_file():
        return False
    if ending in FRAGILE or ending_of(path) in FRAGILE:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(ZSTD)) == ZSTD
    except OSError:  # its reader says so
        return False


def _mark(files: list[Path], reading: Reading, purpose: str) -> str:
    """Changes when a file does, or what is read of it."""
    identities = [[str(file.resolve()), *identity_of(file)] for file in files]
    options = {name: str(value) for name, value in asdict(reading).items() if name not in LIMITS}
    return digest_of([VERSION, purpose, identities, options])


def _error(failure: Failure, files: list[Path], limits: Limits, size: int) -> HeadtailError:
    """One sentence about what happened in the child."""
    if failure.reason == "error":
        return HeadtailError(failure.about)
    name = _named(files if failure.reason in ("memory", "seconds") else _culprits(files, limits))
    if failure.reason == "memory":
        return HeadtailError(
            f"{name} needs more than {limits.memory / GIB:.3g} GiB of memory to be read, too much "
            f"for {_as_size(size)}: it may be damaged. If it is not, allow more (",
            Setting("max_memory", _doubled(limits.memory / GIB)),
            ").",
        )
    if failure.reason == "seconds":
        return HeadtailError(
            f"{name} could not be read within {limits.seconds:,.3g} seconds, too long for "
            f"{_as_size(size)}: it may be damaged. If it is not, allow more (",
            Setting("max_seconds", _doubled(limits.seconds)),
            ").",
        )
    if failure.reason == "exception":
        return HeadtailError(
            f"{name} cannot be read ({failure.about}). It is probably damaged: write or copy it "
            "again."
        )
    if failure.about == "SIGKILL":
        return HeadtailError(
            f"The process that read {name} was killed, probably because the machine ran out of "
            "memory. Free some, or read it on a larger machine."
        )
    return HeadtailError(
        f"{name} cannot be read: the process that read it crashed ({failure.about}). It is "
        "probably damaged: write or copy it again. If it is not, allow more memory (",
        Setting("max_memory", _doubled(limits.memory / GIB)),
        ").",
    )


def _cause(failure: Failure) -> Exception | None:
    """The traceback of the child, for those who look into an error."""
    trace = failure.traceback
    return RuntimeError(f"in the process that read it:\n{trace}") if trace else None


def _culprits(files: list[Path], limits: Limits) -> list[Path]:
    """The file, of several, that is fatal by itself; all, if none is."""
    if len(files) > 1:
        for file in files:
            failure = run(partial(_read_through, file), limits)
            if failure is not None and failure.reason in ("died", "exception"):
                return [file]
    return files


def _read_through(path: Path, progress: Progress | None) -> None:
    """Read all that is in a file."""
    if path.suffix.lower() == ".npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                arrays[name].sum()
        return
    from headtail.data.tables.open import open_table

    table = open_table(path)
    for _ in table.read(table.schema.names, progress):
        pass


def _named(files: list[Path]) -> str:
    """The files in a sentence."""
    if len(files) == 1:
        return f"`{files[0]}`"
    more = f" ({len(files):,} files)" if len(files) > 2 else ""
    return f"`{files[0]}` or {'another' if more else f'`{files[1].name}`'}{more}"


def _doubled(limit: float) -> int:
    """A limit that is worth a try."""
    return max(1, round(2 * limit))


def _as_size(size: int) -> str:
    if size < 1 << 20:
        return f"{size / (1 << 10):,.1f} KiB"
    return f"{size / (1 << 20):,.1f} MiB"
