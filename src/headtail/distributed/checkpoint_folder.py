"""A folder of checkpoints: which of them are whole, which comes next, and which may go.

A checkpoint is a folder. It is written under a temporary name, its `metadata.json` last, forced to
disk, and renamed: what has a name is whole. Checkpoints are numbered; one that turns out damaged
keeps its number.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from headtail.files.atomic import make_folder, sync, write_text
from headtail.files.leftovers import remove, sweep, temporary_name

METADATA = "metadata.json"
"""What is in a checkpoint, and where; written last."""
KEPT = 2
"""Checkpoints that are kept: if the newest is damaged, there is the one before."""
_NAME = re.compile(r"^(?P<kind>checkpoint|damaged)-(?P<number>\d{1,18})$")


def begin(folder: Path) -> tuple[Path, Path]:
    """A new temporary folder for the next checkpoint, and the name that it will get.

    What killed processes have left is removed.
    """
    make_folder(folder)
    sweep(folder)
    path = folder / f"checkpoint-{1 + max(_numbered(folder), default=0)}"
    temporary = temporary_name(path)
    temporary.mkdir()
    return temporary, path


def commit(temporary: Path, path: Path, metadata: str) -> None:
    """Make a checkpoint whose other files are on the disk count."""
    write_text(temporary / METADATA, metadata)
    publish(temporary, path)


def publish(temporary: Path, path: Path) -> None:
    """Give a complete checkpoint its name, for good once this returns."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints that count."""
    if not folder.is_dir():
        return []
    numbered = _numbered(folder, "checkpoint")
    return [numbered[number] for number in sorted(numbered, reverse=True)]


def remove_older(folder: Path) -> None:
    """Remove all but the newest checkpoints, and damaged ones.

    A checkpoint that is being removed has lost its name before it loses a file.
    """
    for path in [*newest_first(folder)[KEPT:], *_numbered(folder, "damaged").values()]:
        leaving = temporary_name(path)
        with suppress(OSError):
            path.replace(leaving)
            remove(leaving)


def set_aside(path: Path) -> None:
    """Let a damaged checkpoint no longer count, so that it takes no good one's place.

    Where the folder cannot be written to, it stays.
    """
    number = path.name.rpartition("-")[2]
    with suppress(OSError):
        path.replace(path.with_name(f"damaged-{number}"))


def _numbered(folder: Path, kind: str | None = None) -> dict[int, Path]:
    found = {}
    for path in folder.iterdir():
        name = _NAME.match(path.name)
        if name is not None and kind in (None, name["kind"]):
            found[int(name["number"])] = path
    return found
