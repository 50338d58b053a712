"""Temporary files and folders that say which process makes them, so that what a killed process left
can be removed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import time
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

ABANDONED = 86_400
"""Seconds after which the unfinished work of another machine counts as abandoned."""
_LEFT = re.compile(
    r"^\..*\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d+)(-\d+)?\.part$", re.DOTALL
)
_NUMBERS = itertools.count()
"""So that two threads never write under the same name."""
_LONGEST = 120
"""Characters of a name that its temporary name repeats: file systems allow 255 bytes in all."""


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` for what this process is still writing."""
    pid = os.getpid()
    maker = f"{_host()}-{pid}-{_started(pid) or 0}-{next(_NUMBERS)}"
    short = os.fsencode(path.name)[:_LONGEST].decode(errors="ignore")
    return path.with_name(f".{short}.{maker}.part")


def sweep(folder: Path, *, everything: bool = False) -> None:
    """Remove unfinished files and folders of processes that are gone.

    Args:
        folder: where to look; folders inside it are left alone.
        everything: of all processes, because this one is the only one that writes here.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            made_by = _LEFT.match(path.name)
            if made_by is not None and (everything or _is_abandoned(path, made_by)):
                remove(path)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all that it holds; if that fails, leave it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def _is_abandoned(path: Path, made_by: re.Match[str]) -> bool:
    known = _started(os.getpid()) is not None
    if known and made_by["host"] == _host():
        return _started(int(made_by["pid"])) != made_by["started"]
    try:
        return time.time() - path.stat().st_mtime > ABANDONED
    except OSError:  # it is gone already
        return False


@cache
def _host() -> str:
    """This machine, and the part of it whose processes we see (a container), in a few letters."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since the machine was; None if there is none, or if this
    system does not say.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError, UnicodeError):
        return None
