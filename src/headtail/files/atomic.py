"""Files that are whole or absent: written under another name, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headtail.errors import HeadtailError


def write_text(path: Path, text: str) -> None:
    """Write text to a file; a reader sees the old content or the new, never a part of it."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    replace_file(path, write)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a temporary file next to `path`, and rename it once it is complete.

    If writing fails, the temporary file is removed and `path` keeps its old content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        # Some writers make files that only their owner may read: restore the user's own default.
        mode = temporary.stat().st_mode & 0o777
        write(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(
            f"`{path}` cannot be written: {_why(path, error)}. What was there before is untouched."
        ) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write to, which is renamed to `path` once it is complete.

    A folder that holds something is refused, before any work is done for it.
    """
    path = path.absolute()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise HeadtailError(f"`{path}` exists already. Name another folder, or delete it first.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(f"`{path}` cannot be written: {_why(path, error)}.") from error


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
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except (FileExistsError, NotADirectoryError) as error:
        message = f"`{folder}` cannot be written: it is not a folder. {advice}"
        raise HeadtailError(message) from error
    except OSError as error:
        raise HeadtailError(f"`{folder}` cannot be written: {error.strerror}. {advice}") from error
