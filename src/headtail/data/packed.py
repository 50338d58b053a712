"""Files as they are or compressed: their bytes, and their lines block by block."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headtail.errors import HeadtailError, Setting, need

PACKED = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
"""How the names of compressed files end."""
BLOCK = 4 << 20
"""Bytes read at a time."""
LOOK = 1 << 17
"""Bytes unpacked at least."""
LONGEST_LINE = 256 << 20
"""Bytes that are read in search of a newline."""
MAX_EXPANSION = 200.0
"""Bytes that a byte of a compressed file may become; text of repeated words becomes 10 to 100."""
UNCHECKED = 4 << 20
"""Bytes that any compressed text may become: so many are parsed in seconds, even as empty lines."""
UNPACKED_TWICE = 64 << 20
"""Bytes up to which a text is unpacked once before it is parsed."""
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
"""The first bytes of gzip, bzip2, xz and zstd."""


def ending_of(path: Path) -> str:
    """The ending of a name in small letters, without that of its compression.

    >>> ending_of(Path("ratings.CSV.gz")), ending_of(Path("u.data"))
    ('.csv', '.data')
    """
    return Path(PACKED.sub("", path.name)).suffix.lower()


def stem_of(path: Path) -> str:
    """The name without its endings.

    >>> stem_of(Path("ratings.csv.gz"))
    'ratings'
    """
    return Path(PACKED.sub("", path.name)).stem


def is_packed(path: Path) -> bool:
    """Whether the first bytes of a file are those of a compressed one."""
    with path.open("rb") as raw:
        return raw.read(6).startswith(_MAGIC)


@contextmanager
def unpacked(
    path: Path, max_expansion: float = MAX_EXPANSION
) -> Iterator[tuple[io.BufferedIOBase, io.BufferedReader]]:
    """The content, decompressed as its first bytes show (names can be wrong), and the file itself,
    which shows how far reading has come.

    Args:
        path: of the file.
        max_expansion: how many times the size of the file its content may have, beyond `UNCHECKED`.
    """
    try:
        with path.open("rb") as raw:
            content = _unpacked(path, raw)
            if content is not raw:
                content = io.BufferedReader(_Expanding(content, path, max_expansion), LOOK)
            yield content, raw
    except EOFError as error:
        raise HeadtailError(
            f"`{path}` is cut off: the archive ends too early. Fetch it again."
        ) from error
    except (zlib.error, lzma.LZMAError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HeadtailError(f"`{path}` cannot be read: {why}. Fetch it again.") from error


class _Expanding(io.RawIOBase):
    """What a compressed file becomes, up to a limit: a few bytes can become gigabytes."""

    def __init__(self, content: io.BufferedIOBase, path: Path, max_expansion: float) -> None:
        self.content = content
        self.path = path
        self.max_expansion = max_expansion
        self.left = max(UNCHECKED, int(max_expansion * path.stat().st_size))

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, room: Any) -> int:
        """Fill the room with the next bytes; 0 at the end."""
        number = self.content.readinto(room)
        self.left -= number
        if self.left < 0:
            raise too_expanded(self.path, self.max_expansion)
        return number


def too_expanded(path: Path, max_expansion: float, unchecked: int = UNCHECKED) -> HeadtailError:
    """The error about a file that becomes far larger than it is.

    Args:
        path: of the file.
        max_expansion: how many times its size it may become.
        unchecked: bytes that it may become in any case.
    """
    size = path.stat().st_size
    return HeadtailError(
        f"`{path}` has {size:,} bytes that unpack to more than {max_expansion:g} times as many, "
        f"and to more than {unchecked >> 20} MiB, which is typical of a decompression bomb. "
        "If you trust it, raise ",
        Setting("max_expansion"),
        ".",
    )


def _unpacked(path: Path, raw: io.BufferedReader) -> io.BufferedIOBase:
    start = raw.peek(6)
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise HeadtailError(
            f"`{path}` is a spreadsheet. Save the sheet as CSV, and name that file."
        )
    if start.startswith(b"PK\3\4"):
        raise HeadtailError(f"`{path}` is a zip archive. Unpack it, and name the file inside.")
    if start.startswith(_MAGIC[0]):
        return gzip.GzipFile(fileobj=raw)
    if start.startswith(_MAGIC[1]):
        return bz2.BZ2File(raw)
    if start.startswith(_MAGIC[2]):
        return lzma.LZMAFile(raw)
    if start.startswith(_MAGIC[3]):
        arrow = need("pyarrow", extra="data", to="Reading zst files")
        return io.BufferedReader(arrow.CompressedInputStream(raw, "zstd"), BLOCK)
    return raw


def line_blocks(
    path: Path,
    block: int = BLOCK,
    longest_line: int = LONGEST_LINE,
    max_expansion: float | None = None,
) -> Generator[tuple[bytes, float]]:
    """Whole lines, about `block` bytes at a time, each ended by a newline, with the share of the
    file read so far.

    Without `max_expansion`, for a look at the first lines, the default holds as far as they go.
    """
    if max_expansion is not None:
        _refuse_bomb(path, max_expansion)
    with unpacked(path, MAX_EXPANSION if max_expansion is None else max_expansion) as (file, raw):
        size = max(path.stat().st_size, 1)
        begun: list[bytes] = []  # pieces of a line that goes on, joined once
        length = 0
        while read := file.read(block):
            cut = read.rfind(b"\n") + 1
            length = len(read) - cut if cut else length + len(read)
            if length > longest_line:
                raise HeadtailError(
                    f"`{path}` has a line of more than {longest_line >> 20} MiB. Write one "
                    "point per line."
                )
            if cut:
                yield b"".join([*begun, read[:cut]]), raw.tell() / size
                begun = []
            begun.append(read[cut:])
        if rest := b"".join(begun):
            yield rest + b"\n", 1.0


def _refuse_bomb(path: Path, max_expansion: float) -> None:
    """Unpack a small file once before its lines are parsed, which takes a hundred times as long: it
    may be one that becomes as many empty lines as it may, and only then too many.
    """
    with unpacked(path, max_expansion) as (file, raw):
        small = path.stat().st_size * max_expansion < UNPACKED_TWICE
        while file is not raw and small and file.read(BLOCK):
            pass


def first_lines(path: Path, most: int = 1 << 16) -> list[str]:
    """The lines at the start of a file, without the last one where it may be cut short."""
    with unpacked(path) as (file, _):
        start = file.read(most)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise HeadtailError(
            f"`{path}` is UTF-16 text. Convert it, for example with `iconv -f utf-16 -t utf-8`."
        )
    text = start.decode("utf-8-sig", "replace")
    lines = text.splitlines()
    return lines[:-1] if len(start) == most and len(lines) > 1 else lines
