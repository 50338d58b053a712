"""Damage that any file can suffer: to its bytes, to its lines, and by compression.

A mutation takes the content of a file and a random generator, and returns other content. Equal
generators give equal damage.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import re
from collections.abc import Callable

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    "0",
    "-1",
    "1",
    "0.5",
    "-0.0",
    str(2**31 - 1),
    str(2**31),
    str(2**31 + 1),
    str(-(2**31) - 1),
    str(2**32),
    str(2**53 + 1),
    str(2**63 - 1),
    str(2**63),
    str(2**63 + 1),
    str(2**64 - 1),
    str(-(2**63) - 1),
    "1" + "0" * 50,
    "9" * 5000,
    "1e999",
    "-1e999",
    "1e-999",
    "1e308",
    "NaN",
    "Infinity",
    "-inf",
    "0x10",
    "1_000",
    "٣",
)
"""Numbers that break what was tried with kind ones."""
WORDS = (
    "",
    " ",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "[bold red]markup[/]",
    "[/]",
    "<script>alert(1)</script>",
    "=HYPERLINK(1)",
    "\u202egnp.exe",
    "../../etc/passwd",
    "/dev/zero",
    "a\rb",
    "a\x00b",
    "\ufeff",
    "e\u0301" * 9,
    "\U0001f600",
    "x" * 3000,
    "null",
    "NA",
    "{}",
    "__label__",
    '"',
    "%s{0}$HOME`id`",
    "\u2028",
)
"""Words that are escape codes, markup, paths or nothing."""
SIZES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
"""What a binary count or offset is replaced by."""
BOMBS = {b"\n": 256 << 20, b"0": 256 << 20, b" ": 256 << 20, b"1,2\n": 4 << 20, b"1 2:3\n": 4 << 20}
"""What bombs are filled with, and bytes that they unpack to: many of nothing, fewer of rows."""
BLOCK = 1 << 20
"""Bytes of the parts of a bomb."""


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    """A few bits are the other way round."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return content[: rng.randrange(len(content) + 1)]


def cut_start(content: bytes, rng: random.Random) -> bytes:
    """The beginning is missing."""
    return content[rng.randrange(len(content) + 1) :]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Random bytes appear somewhere."""
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.choice((1, 2, 8, 100))) + content[place:]


def remove(content: bytes, rng: random.Random) -> bytes:
    """A piece is missing."""
    start, end = _span(content, rng)
    return content[:start] + content[end:]


def repeat(content: bytes, rng: random.Random) -> bytes:
    """A piece occurs several times."""
    start, end = _span(content, rng)
    return content[:start] + content[start:end] * rng.choice((2, 3, 50)) + content[end:]


def swap(content: bytes, rng: random.Random) -> bytes:
    """Two pieces of equal length change places."""
    if len(content) < 4:
        return content
    size = rng.randrange(1, max(2, len(content) // 4))
    first = rng.randrange(len(content) - 2 * size + 1)
    second = rng.randrange(first + size, len(content) - size + 1)
    changed = bytearray(content)
    changed[first : first + size] = content[second : second + size]
    changed[second : second + size] = content[first : first + size]
    return bytes(changed)


def splice(content: bytes, rng: random.Random) -> bytes:
    """A piece is written over another place, as by a lost disk block."""
    start, end = _span(content, rng)
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[start:end] + content[place + end - start :]


def zeros(content: bytes, rng: random.Random) -> bytes:
    """A piece holds zero bytes, as after a power cut."""
    start, end = _span(content, rng)
    return content[:start] + bytes(end - start) + content[end:]


def extreme_size(content: bytes, rng: random.Random) -> bytes:
    """A binary number holds an extreme."""
    width = rng.choice((1, 2, 4, 8))
    if len(content) < width:
        return content
    value = rng.choice(SIZES) & ((1 << 8 * width) - 1)
    place = rng.randrange(len(content) - width + 1)
    number = value.to_bytes(width, rng.choice(("little", "big")))
    return content[:place] + number + content[place + width :]


BYTES: tuple[Mutation, ...] = (
    flip_bits,
    cut,
    cut_start,
    insert,
    remove,
    repeat,
    swap,
    splice,
    zeros,
    extreme_size,
)


def number_in_text(content: bytes, rng: random.Random) -> bytes:
    """A number that is written out becomes an extreme."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if not numbers:
        return flip_bits(content, rng)
    # Half of the time near the beginning, where headers are.
    near = numbers[: rng.choice((3, len(numbers)))]
    chosen = rng.choice(near)
    return content[: chosen.start()] + rng.choice(NUMBERS).encode() + content[chosen.end() :]


def word_in_text(content: bytes, rng: random.Random) -> bytes:
    """A word becomes one that is hard to show, or to take for a name."""
    words = list(re.finditer(rb"[^\s,;|\t:\"]+", content))
    if not words:
        return insert(content, rng)
    chosen = rng.choice(words[: rng.choice((6, len(words)))])
    word = rng.choice(WORDS).encode() if rng.random() < 0.9 else rng.randbytes(4)
    return content[: chosen.start()] + word + content[chosen.end() :]


def lines_in_text(content: bytes, rng: random.Random) -> bytes:
    """Lines are cut, repeated, exchanged, emptied or joined."""
    lines = content.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
        case 1:
            lines[i:i] = [lines[j]] * rng.choice((1, 2, 2000))
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            lines[i] = b""
        case 4:
            lines[i] = lines[i] + rng.choice((b"", b" ", b",", b"\t", b"\r", b"\0")) + lines[j]
        case _:
            del lines[i]
    return b"\n".join(lines)


def separators_in_text(content: bytes, rng: random.Random) -> bytes:
    """A separator is another one, here or everywhere."""
    marks = (b",", b"\t", b";", b"|", b"::", b" ", b":", b"\n", b'"', b"\r\n", b"\0", b"")
    old, new = rng.choice(marks[:-1]), rng.choice(marks)
    return content.replace(old, new, rng.choice((1, -1)))


def encoding_of_text(content: bytes, rng: random.Random) -> bytes:
    """Text in another encoding, or with a mark of one."""
    text = content.decode("utf-8", "replace")
    match rng.randrange(4):
        case 0:
            return text.encode("utf-16")
        case 1:
            return b"\xef\xbb\xbf" + content
        case 2:
            return text.encode("utf-32-le")
        case _:
            return content.replace(b"e", b"\xe9").replace(b"1", b"1\xff", 1)


def one_long_line(content: bytes, rng: random.Random) -> bytes:
    """The first line goes on and on."""
    first, _, rest = content.partition(b"\n")
    more = rng.choice((b",", b" ", b"\t", b":")) + first
    return first + more * min(3000, (1 << 20) // len(more)) + b"\n" + rest


TEXT: tuple[Mutation, ...] = (
    number_in_text,
    number_in_text,
    word_in_text,
    word_in_text,
    lines_in_text,
    separators_in_text,
    encoding_of_text,
    one_long_line,
)

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda content: gzip.compress(content, 9),
    ".bz2": lambda content: bz2.compress(content, 1),
    ".xz": lambda content: lzma.compress(content, preset=0),
}


def packed(content: bytes, ending: str, rng: random.Random) -> bytes:
    """Compressed content, which may be damaged, in two parts, or a bomb."""
    pack = PACKERS[ending]
    match rng.randrange(16):
        case 0:
            return pack(content) + bomb(pack, rng)
        case 1:
            return pack(content) + pack(content)
        case 2:
            return pack(content)
        case 3:
            return pack(pack(content))
        case _:
            return rng.choice(BYTES)(pack(content), rng)


def bomb(pack: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A small file that unpacks to a large one."""
    unit, size = rng.choice(list(BOMBS.items()))
    part = pack(unit * (BLOCK // len(unit)))
    return part * (size // BLOCK)  # parts one after the other are one file, and are packed faster


def _span(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    longest = min(len(content), start + rng.choice((1, 4, 16, 64, 1024)))
    return start, rng.randrange(start, longest + 1)
