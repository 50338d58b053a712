"""Regular files only: a pipe would make its reader wait for ever, and a device may never end."""

from __future__ import annotations

import errno
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from headtail.errors import HeadtailError


def regular(path: Path) -> Path:
    """The path itself; an OSError if it is a pipe, a socket or a device.

    Folders and missing files are left to whoever opens them.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path
    if not S_ISREG(mode) and not S_ISDIR(mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return path


def named_in_utf8(path: Path) -> Path:
    """The path itself; refused if its name is not UTF-8, which some libraries cannot open."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise HeadtailError(
            f"`{path}` cannot be opened: the library that reads such files takes only names in "
            "UTF-8. Rename the file, or the folder that it is in."
        ) from error
    return path
