"""A folder that one process at a time writes to."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headtail.errors import HeadtailError, Setting
from headtail.files.atomic import check_writable
from headtail.files.leftovers import sweep

if sys.platform != "win32":
    import fcntl


class FolderInUseError(HeadtailError):
    """Another process writes to this folder."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make a folder if there is none, and hold it: another process that tries to is refused.

    The system drops the lock of a process that ends, with those forked from it, in whatever way; no
    file is needed for it.
    What killed processes have left in the folder is removed. File systems without locks are taken
    as they are.
    """
    if sys.platform == "win32":
        yield
        return
    check_writable(folder, "Choose another folder.")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _hold(descriptor, folder)
        yield
    finally:
        # Not by closing alone: a process that was forked meanwhile has the same lock.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _hold(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FolderInUseError(
            f"`{folder}` is in use by {_holder(os.fstat(descriptor).st_ino)}. Wait until that has "
            "ended, or choose another folder with ",
            Setting("out"),
            ".",
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS):
            raise
        return
    sweep(folder, everything=True)


def _holder(inode: int) -> str:
    """The process that has locked this inode, where the system knows it."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        locks = []
    for lock in locks:
        fields = lock.split()
        if "FLOCK" in fields and fields[5].rpartition(":")[2] == str(inode):
            return f"process {fields[4]}"
    return "another process"
