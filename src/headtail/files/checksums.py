"""Checksums, which show that content is damaged. They do not show who wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from headtail.errors import HeadtailError
from headtail.files.atomic import write_text
from headtail.files.regular import regular

SUMS = "SHA256SUMS"
"""The last file of a folder of results: the checksums of the others, as `sha256sum --check` reads
them.
"""

OTHER_SUMS = "SHA256SUMS.other"
"""The checksums of files that hold times, so that equal runs have equal `SHA256SUMS`."""


class DamagedWarning(UserWarning):
    """Something on disk did not match its checksum, and what was done about it."""


def new_checksum() -> xxhash.xxh3_128:
    """A checksum to be updated with content; it reads memory about as fast as memory is read."""
    return xxhash.xxh3_128()


def sealed(value: Any) -> str:
    """A JSON value with its checksum, as text.

    >>> opened(sealed({"rows": 3}))
    {'rows': 3}
    """
    content = json.dumps(value)
    return json.dumps({"content": content, "checksum": _checksum(content)})


def opened(text: str) -> Any:
    """The value that `sealed` was given; a ValueError if the text is not what it returned.

    >>> opened(sealed([1, 2]).replace("2", "3"))
    Traceback (most recent call last):
    ValueError: its checksum does not match
    """
    try:
        outer = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(outer, dict) or not isinstance(outer.get("content"), str):
        raise ValueError("it has no checksum")
    if outer.get("checksum") != _checksum(outer["content"]):
        raise ValueError("its checksum does not match")
    return json.loads(outer["content"])


def _checksum(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def write_sums(folder: Path, names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Write the checksums of files of a folder; those that do not exist are left out.

    Args:
        folder: of results.
        names: files that are equal for equal runs.
        others: files that hold times.
    """
    for file, listed in ((OTHER_SUMS, others), (SUMS, names)):
        there = [name for name in listed if (folder / name).exists()]
        if there:
            _write(folder / file, {name: _sha256(folder / name) for name in there})


def add_sum(folder: Path, name: str) -> None:
    """Write the checksum of one more file, where the folder has checksums."""
    if (folder / SUMS).exists():
        _write(folder / SUMS, _read(folder / SUMS) | {name: _sha256(folder / name)})


def check_sums(folder: Path, advice: str) -> None:
    """Refuse a folder whose checksums are missing, or in which a file does not match.

    Args:
        folder: of results.
        advice: what to do about a damaged one, in a sentence.
    """
    if (problem := damage_of(folder)) is not None:
        raise HeadtailError(f"`{folder}` is damaged: {problem}. {advice}")


def damage_of(folder: Path) -> str | None:
    """What is wrong with a folder of results, in words; None if all its files match."""
    if not (folder / SUMS).exists():
        return f"`{SUMS}` is missing"
    sums = {}
    for file in (SUMS, OTHER_SUMS):
        if (folder / file).exists():
            try:
                sums |= _read(folder / file)
            except (OSError, ValueError):
                return f"`{file}` is not a list of checksums"
    for name, wanted in sums.items():
        try:
            actual = _sha256(folder / name)
        except OSError as error:
            return f"`{name}` cannot be read ({error.strerror})"
        if actual != wanted:
            return f"`{name}` does not match its checksum"
    return None


def _write(path: Path, sums: dict[str, str]) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_text(path, "".join(lines))


def _read(path: Path) -> dict[str, str]:
    sums = {}
    for line in regular(path).read_text(encoding="utf-8").splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or "/" in name or len(digest) != 64:
            raise ValueError("it has other lines")
        sums[name] = digest
    if not sums:
        raise ValueError("it is empty")
    return sums


def _sha256(path: Path) -> str:
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
