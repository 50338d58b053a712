"""What is looked at before JSON lines are parsed: pyarrow neither checks that text is UTF-8 nor
how deeply values are nested, and some thousands of levels end the process.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from headtail.data.packed import MAX_EXPANSION, unpacked
from headtail.errors import HeadtailError

BLOCK = 1 << 22
"""Bytes parsed at a time."""
DEEPEST = 200
"""Levels of nesting that are read."""
LONGEST = 2 * BLOCK
"""Bytes of a line; pyarrow reads no object that is in three blocks."""
_BRACKETS = b"{[]}"
_OPENING = b"{["
_AS_ONE = bytes.maketrans(b"[", b"{")
_NEITHER_OPENING_NOR_NEWLINE = bytes(set(range(256)) - set(_OPENING + b"\n"))
_NO_BRACKET = bytes(set(range(256)) - set(_BRACKETS))
_STRING = re.compile(rb'"[^"\n]*"?')
"""A string without escapes; none goes over a newline."""


def check_text(path: Path, max_expansion: float = MAX_EXPANSION) -> None:
    """Refuse what is not UTF-8, and objects within objects without end."""
    decoder = getincrementaldecoder("utf-8")()
    with unpacked(path, max_expansion) as (file, _):
        try:
            for lines in _whole_lines(file, path):
                decoder.decode(lines)
                if is_deep(lines):
                    raise HeadtailError(
                        f"`{path}` has values nested more than {DEEPEST} levels deep, which are "
                        'not read. Write one flat object per line, `{"user": 3, "item": 17}`.'
                    )
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise HeadtailError(
                f"`{path}` is not UTF-8 text. Convert it, for example with `iconv -f "
                "latin1 -t utf-8`."
            ) from error


def is_deep(lines: bytes) -> bool:
    """Whether values in these lines are nested more than `DEEPEST` levels deep.

    >>> is_deep(b'{"text": "%s"}' % (b"[" * 1000))
    False
    >>> is_deep(b'{"list": %s}' % (b"[" * 1000))
    True
    """
    # Where every line is `{…}`, no value goes over lines (`}` and `{` never follow each other in
    # one), and few brackets in a line cannot nest deeply. So strings need not be told from the
    # rest, which takes longer than to parse.
    if lines.count(b"\n") <= lines.count(b"}\n{") + 1:
        openings = lines.translate(_AS_ONE, _NEITHER_OPENING_NOR_NEWLINE)
        if b"{" * (DEEPEST + 1) not in openings:
            return False
    plain = lines.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _STRING.sub(b"", plain).translate(None, _NO_BRACKET)
    opening = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(_OPENING, np.uint8))
    levels = np.cumsum(np.where(opening, 1, -1))
    # A bracket that closes nothing is an error, and opens no depth for what follows.
    levels -= np.minimum.accumulate(np.minimum(levels, 0))
    return bool((levels > DEEPEST).any())


def _whole_lines(file: BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Blocks of lines, each with its newline but perhaps the last."""
    rest = b""
    while block := file.read(BLOCK):
        block = rest + block
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = block.rfind(b"\n") + 1
        if end:
            yield block[:end]
        rest = block[end:]
        if len(rest) > LONGEST:
            raise HeadtailError(
                f"`{path}` is not readable as JSON lines: a line has more than "
                f"{LONGEST >> 20} MiB. Write one object per line."
            )
    yield rest
