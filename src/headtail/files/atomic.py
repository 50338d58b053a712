"""Atomic writes: a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headtail.errors import HeadtailError


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    write_beside(path, write)


def write_beside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a temporary file in the folder of `path`, then rename it to `path`.

    If `write` fails, no temporary file is left and `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        # The permissions of an ordinary file: some writers make theirs readable by its owner only.
        mode = temporary.stat().st_mode & 0o777
        write(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C must not leave a file either
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(
            f"`{path}` cannot be written: {error.strerror or error}. What was there before is "
            "unchanged."
        ) from error


def check_writable(folder: Path, advice: str) -> None:
    """Make a folder, and refuse one that cannot be written before any work is done for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is not a folder" if is_file else error.strerror
        raise HeadtailError(f"`{folder}` cannot be written: {why}. {advice}") from error
