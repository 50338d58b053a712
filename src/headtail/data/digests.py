"""Digests of files' content, and whether a file is still the one that was looked at."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtail.data.shards import shards_of
from headtail.errors import HeadtailError, cannot_read
from headtail.files.atomic import write_memo
from headtail.files.cache_folder import cache_folder
from headtail.files.checksums import new_checksum, opened, sealed

BLOCK = 16 << 20
"""Bytes read at a time."""
SETTLED = 2.0
"""Seconds after which another change to a file gets another time, whatever clock the file system
has.
"""


@dataclass(frozen=True)
class Seen:
    """A file as it was: everything that an edit changes, in place or not."""

    path: Path
    identity: tuple[int, ...]
    digest: str
    settled: bool

    def check(self) -> None:
        """Refuse a file that has changed since."""
        try:
            same = identity_of(self.path) == self.identity
            same = same and (self.settled or checksum_of(self.path) == self.digest)
        except OSError:
            same = False
        if not same:
            raise HeadtailError(
                f"`{self.path}` changed while it was read. Read it again once it is complete."
            )


def look_at(path: Path) -> Seen:
    """A file with the digest of its content, which is remembered while the file stays as it is."""
    try:
        identity = identity_of(path)
        # What changed a moment ago may change again without getting another time.
        settled = time.time() - max(identity[2:]) / 1e9 > SETTLED
        mark = f"{path.resolve()} {identity}"
        memo = cache_folder() / "digests" / _of_text(mark)
        known = _remembered(memo, mark) if settled else None
        if known is not None:
            return Seen(path, identity, known, settled)
        content = checksum_of(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    seen = Seen(path, identity, content, settled)
    if settled:
        write_memo(memo, sealed([mark, content]))
    return seen


def digest(path: Path) -> str:
    """A digest of a file's content."""
    return look_at(path).digest


def content_of(paths: Iterable[Path]) -> str:
    """A digest of the content of files, with all their shards, however they are read."""
    return digest_of([[digest(shard) for shard in shards_of(path)] for path in paths])


def digest_of(value: Any) -> str:
    """A digest of a JSON value."""
    return _of_text(json.dumps(value, sort_keys=True))


def identity_of(path: Path) -> tuple[int, ...]:
    """What changes when a file is edited or replaced: its inode, size, modification time, which a
    program can set back, and change time, which it cannot.
    """
    stat = os.stat(path)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def checksum_of(path: Path) -> str:
    """The checksum of a file's bytes, read block by block."""
    checksum = new_checksum()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            checksum.update(block)
    return checksum.hexdigest()


def _of_text(text: str) -> str:
    checksum = new_checksum()
    checksum.update(text.encode("utf-8", "surrogatepass"))
    return checksum.hexdigest()


def _remembered(memo: Path, mark: str) -> str | None:
    """The digest in a memo, if it is whole and of this file."""
    try:
        of, content = opened(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return content if of == mark else None
