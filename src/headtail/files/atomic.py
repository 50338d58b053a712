"""Files that are whole or absent: written under another name, forced to disk, then renamed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headtail.errors import HeadtailError
from headtail.files.leftovers import remove, sweep, temporary_name

_NOT_FOR_FOLDERS = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EBADF,
    errno.EACCES,
    errno.EPERM,
)
"""What file systems that cannot force a folder to disk answer."""


def write_text(path: Path, text: str) -> None:
    """Write text to a file; a reader sees the old content or the new, never a part of it."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)

    replace_file(path, write)


def write_memo(path: Path, text: str) -> None:
    """Write what only saves time and is checked when it is read: nothing waits for the disk, a part
    of it counts as nothing, and if it cannot be written, it is not.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a temporary file next to `path`, and rename it once it is on the disk.

    If writing fails, the temporary file is removed and `path` keeps its old content. The rename is
    the last change: a process that is killed after it has left nothing to remove.
    """
    temporary = temporary_name(path)
    try:
        make_folder(path.parent)
        sweep(path.parent)
        temporary.touch()
        # Some writers make files that only their owner may read: restore the user's own default.
        mode = temporary.stat().st_mode & 0o777
        write(temporary)
        temporary.chmod(mode)
        sync(temporary)
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        remove(temporary)
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(
            f"`{path}` cannot be written: {_why(path, error)}. What was there before is untouched."
        ) from error
    try:
        sync(path.parent)
    except OSError as error:
        raise HeadtailError(
            f"`{path}` may not be on the disk yet: {error.strerror}. Check the disk."
        ) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write to, which is renamed to `path` once it is complete.

    A folder that holds something is refused, before any work is done for it.
    """
    path = path.absolute()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise HeadtailError(f"`{path}` exists already. Name another folder, or delete it first.")
    temporary = temporary_name(path)
    try:
        make_folder(path.parent)
        sweep(path.parent)
        temporary.mkdir()
        yield temporary
        sync_all(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        remove(temporary)
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(f"`{path}` cannot be written: {_why(path, error)}.") from error


def keep(path: Path, name: Path) -> None:
    """Keep the present content of a file, if there is one, under another name too.

    It is not copied; on file systems where a file has one name only, it is not kept.
    """
    temporary = temporary_name(name)
    with suppress(OSError):
        os.link(path, temporary)
        temporary.replace(name)  # leaves both if they are the same file already
        temporary.unlink(missing_ok=True)


def delete(path: Path) -> None:
    """Delete a file if it exists, for good once this returns."""
    try:
        path.unlink()
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be deleted: {error.strerror}.") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, for good once this returns."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process made it meanwhile
            folder.mkdir()
        sync(folder.parent)
    if missing:
        path = missing[0]
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(path))


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of files, is on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS or not path.is_dir():
            raise


def sync_all(folder: Path) -> None:
    """Wait until a folder and all that it holds are on the disk."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_all(path)
        else:
            sync(path)
    sync(folder)


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        blocking = next(folder for folder in path.parents if folder.exists())
        return f"`{blocking}` is not a folder; name another file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; name a file"
    return error.strerror or str(error)


def check_writable(folder: Path, advice: str) -> None:
    """Make a folder, and refuse one that cannot be written to before any work is done for it."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except (FileExistsError, NotADirectoryError) as error:
        message = f"`{folder}` cannot be written: it is not a folder. {advice}"
        raise HeadtailError(message) from error
    except OSError as error:
        raise HeadtailError(f"`{folder}` cannot be written: {error.strerror}. {advice}") from error
