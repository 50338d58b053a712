"""Where results are to be written: refused before any work is done for them, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from headtail.errors import HeadtailError, Setting


def check_out_file(path: Path) -> None:
    """Refuse a path that no file can be written to, such as a folder, a device or a pipe."""
    _check_name(path)
    if _exists(path) and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise HeadtailError(Setting("out"), f" must be a file, but `{path}` is {what}.")
    _check_above(path.absolute().parent)


def check_out_folder(path: Path) -> None:
    """Refuse a path that is not a folder and cannot become one."""
    _check_name(path)
    _check_above(path.absolute())


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise HeadtailError(
            Setting("out"),
            f" must be a name in UTF-8, but `{path}` is not, and some files cannot be written "
            "there. Choose another name.",
        ) from None


def _exists(path: Path) -> bool:
    """Whether there is something, also where one may not look."""
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise HeadtailError(
            Setting("out"), f" cannot be `{path}`: {why}. Choose another name."
        ) from error


def _check_above(folder: Path) -> None:
    """Refuse a folder below a file, or in a folder that nothing can be written to."""
    existing = next(above for above in (folder, *folder.parents) if _exists(above))
    if not existing.is_dir():
        raise HeadtailError(
            Setting("out"),
            f": `{existing}` cannot be written: it is not a folder. Choose another folder.",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise HeadtailError(
            Setting("out"),
            f": `{existing}` cannot be written: it is read-only. Choose another folder.",
        )
