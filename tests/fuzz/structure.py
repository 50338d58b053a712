"""Damage that keeps a format whole enough for its reader to go on, and lies inside it."""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
from typing import Any

from tests.fuzz.mutate import BYTES, NUMBERS, SIZES, TEXT, WORDS, Mutation, flip_bits

DEPTHS = (150, 1_000, 10_000, 100_000)
"""How deep nested values are nested: parsers differ in what they bear."""
_MARK = "\u0001raw\u0001"


def json_value(content: bytes, rng: random.Random) -> bytes:
    """A value somewhere in a JSON text is replaced by one of another kind."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return flip_bits(content, rng)
    return _changed_tree(tree, rng)


def json_line(content: bytes, rng: random.Random) -> bytes:
    """Likewise in one line of JSON lines."""
    lines = content.splitlines()
    if not lines:
        return content
    i = rng.randrange(len(lines))
    lines[i] = json_value(lines[i], rng)
    return b"\n".join(lines) + b"\n"


def _changed_tree(tree: Any, rng: random.Random) -> bytes:
    places = list(_places(tree))
    raw = _raw_value(rng)
    if not places or rng.random() < 0.05:
        return raw
    holder, key = rng.choice(places)
    if rng.random() < 0.2 and isinstance(holder, dict):
        if rng.random() < 0.5:
            del holder[key]
        else:
            holder[rng.choice(WORDS)] = holder.pop(key)
        return json.dumps(tree).encode()
    # A field that no other line has is of any type, where another type is an error right away.
    added = isinstance(holder, dict) and rng.random() < 0.3
    holder["more" if added else key] = _MARK
    return json.dumps(tree).replace(json.dumps(_MARK), raw.decode()).encode()


def _places(tree: Any) -> Any:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


def _raw_value(rng: random.Random) -> bytes:
    """A JSON value that a reader may not expect, as it is written."""
    match rng.randrange(7):
        case 0 | 1:
            return rng.choice(NUMBERS).encode()
        case 2:
            return json.dumps(rng.choice(WORDS)).encode()
        case 3:
            return rng.choice((b"null", b"true", b"false", b"[]", b"{}", b'"\\ud800"'))
        case 4:
            depth = rng.choice(DEPTHS)
            return b"[" * depth + b"]" * depth
        case 5:
            depth = rng.choice(DEPTHS)
            return b'{"a":' * depth + b"1" + b"}" * depth
        case _:
            return rng.choice((b"[1]", b'{"a": 1}', b"[[1, 2], [3]]", b"[null]", b'"1"', b"5.9"))


def safetensors_header(content: bytes, rng: random.Random) -> bytes:
    """A header with lying shapes, types, offsets or facts, of the right length or not."""
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
    except (ValueError, RecursionError):
        return flip_bits(content, rng)
    data = content[8 + size :]
    names = [name for name in header if name != "__metadata__"] if isinstance(header, dict) else []
    if not names or not all(isinstance(header[name], dict) for name in names):
        return flip_bits(content, rng)
    about = header[rng.choice(names)]
    match rng.randrange(9):
        case 0:
            about["shape"] = rng.choice(([], [0], [2**40], [2**62, 4], [1, 2, 3], "x"))
        case 1:
            about["dtype"] = rng.choice(("F64", "I64", "BOOL", "F8_E4M3", "BF16", "U8", "X", 3))
        case 2:
            about["data_offsets"] = rng.choice(([0, 0], [0, 2**63], [8, 4], [-1, 4], [0], None))
        case 3:
            name = rng.choice(names)
            header[rng.choice(WORDS)] = header.pop(name)
        case 4:
            header[rng.choice(names)] = header[rng.choice(names)]
        case 5:
            del header[rng.choice(names)]
        case 6:
            header = _facts_changed(header, rng)
        case 7:
            data = b"".join(rng.choice(_FLOATS) for _ in range(len(data) // 4 + 1))[: len(data)]
        case _:
            size = rng.choice(SIZES)
            return size.to_bytes(8, "little") + json.dumps(header).encode() + data
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _facts_changed(header: dict[str, Any], rng: random.Random) -> dict[str, Any] | bytes:
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not metadata:
        return _changed_tree(header, rng)
    key = rng.choice(list(metadata))
    facts = str(metadata[key]).encode()
    metadata[key] = json_value(facts, rng).decode("utf-8", "replace")
    return header


_FLOATS = [
    struct.pack("<f", value) for value in (0.0, 1.0, -1.0, 3e38, float("inf"), float("nan"), 1e-45)
]


def zip_members(content: bytes, rng: random.Random) -> bytes:
    """Members of an archive are damaged, missing, doubled, misnamed or bombs; their CRCs are right.

    The members of an `.npz` file are `.npy`, whose headers are Python literals.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # it is damaged already, in one of many ways
        return flip_bits(content, rng)
    if not members:
        return flip_bits(content, rng)
    i = rng.randrange(len(members))
    name, data = members[i]
    match rng.randrange(7):
        case 0:
            members[i] = name, rng.choice(BYTES)(data, rng)
        case 1 | 2:
            members[i] = name, npy_header(data, rng)
        case 3:
            members[i] = rng.choice(WORDS).replace("\0", "") + ".npy", data
        case 4:
            del members[i]
        case 5:
            members.append((name, data))
        case _:
            members[i] = name, data + bytes(64 << 20)
    written = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(), zipfile.ZipFile(written, "w", method) as archive:
        warnings.simplefilter("ignore")  # a name that occurs twice is meant
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return written.getvalue()


def npy_header(content: bytes, rng: random.Random) -> bytes:
    """The header of a `.npy` file lies about type, order or shape, or is not a literal."""
    size = int.from_bytes(content[8:10], "little")
    shape = (
        "()",
        "(0,)",
        "(-1,)",
        f"({2**40},)",
        f"({2**62}, 8)",
        "(1e9,)",
        f"({10**50},)",
        "'x'",
        "(3, 4)",
    )
    dtype = ("'<f8'", "'<i8'", "'|O'", "'<U9'", "'|b1'", "[('a', '<f4')]", "'<M8[s]'", "'|V0'", "3")
    match rng.randrange(5):
        case 0:
            described = f"'descr': {rng.choice(dtype)}, 'fortran_order': False, 'shape': (6,)"
        case 1:
            described = f"'descr': '<f4', 'fortran_order': True, 'shape': {rng.choice(shape)}"
        case 2:
            described = f"'descr': {rng.choice(dtype)}, 'shape': {rng.choice(shape)}"
        case 3:
            described = "(" * rng.choice((50, 5000))
        case _:
            return rng.choice(TEXT)(content[: 10 + size], rng) + content[10 + size :]
    header = ("{" + described + "}\n").encode()
    return content[:8] + len(header).to_bytes(2, "little") + header + content[10 + size :]


def parquet_footer(content: bytes, rng: random.Random) -> bytes:
    """The footer or its length is damaged; the magic words stay."""
    if len(content) < 12:
        return flip_bits(content, rng)
    size = int.from_bytes(content[-8:-4], "little")
    if not 0 < size < len(content) - 8 or rng.random() < 0.2:
        length = rng.choice(SIZES) & 0xFFFFFFFF
        return content[:-8] + length.to_bytes(4, "little") + content[-4:]
    footer = rng.choice(BYTES)(content[-8 - size : -8], rng)
    return content[: -8 - size] + footer + len(footer).to_bytes(4, "little") + content[-4:]


def page_headers(content: bytes, rng: random.Random) -> bytes:
    """The first bytes of column chunks are damaged: sizes and encodings of pages."""
    if len(content) < 40:
        return flip_bits(content, rng)
    start = rng.choice((4, rng.randrange(4, len(content) - 20)))
    end = min(start + 24, len(content) - 12)
    return content[:start] + rng.choice(BYTES)(content[start:end], rng) + content[end:]


_OPCODES = b"()0125BCEFGIJKLMNPQRSTUVX]abcdefghijlopqrstu}.\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x97\x98"  # noqa: E501 - one list


def pickle_opcodes(content: bytes, rng: random.Random) -> bytes:
    """Opcodes of a pickle are exchanged, inserted, or build what is large or deep."""
    place = rng.randrange(min(len(content), rng.choice((64, 512, 1 << 20))) + 1)
    match rng.randrange(7):
        case 0:
            new = bytes([rng.choice(_OPCODES)])
            return content[:place] + new + content[place + 1 :]
        case 1:
            new = bytes(rng.choice(_OPCODES) for _ in range(rng.randrange(1, 6)))
            return content[:place] + new + content[place:]
        case 2:
            return content[:place] + b"](" * rng.choice((10, 10_000)) + content[place:]
        case 3:  # an integer of 2,000 bytes
            return content[:place] + b"\x8b" + (2000).to_bytes(4, "little") + b"\x7f" * 2000
        case 4:  # a tuple that holds itself twice, 34 times over, as the key of a dictionary
            return b"\x80\x02}(" + b"K\x01" + b"q\x00h\x00\x86" * 34 + b"K\x01u."
        case 5:
            name = rng.choice((b"os\nsystem\n", b"numpy\nndarray\n", b"builtins\neval\n", b"\n\n"))
            return content[:place] + b"c" + name + content[place:]
        case _:
            size = (rng.choice(SIZES) & 0xFFFFFFFF).to_bytes(4, "little")
            return content[:place] + rng.choice((b"T", b"B", b"X", b"r", b"j")) + size


def png_chunks(content: bytes, rng: random.Random) -> bytes:
    """Sizes in a PNG header lie, with a right CRC; other images are damaged at their start."""
    if not content.startswith(b"\x89PNG") or len(content) < 33:
        return rng.choice(BYTES)(content[:64], rng) + content[64:]
    import zlib

    values = [rng.choice((0, 1, 40_000, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
    fields = struct.pack(">II", *values) + bytes(rng.choice((0, 1, 2, 3, 8, 16)) for _ in range(5))
    chunk = b"IHDR" + (fields if rng.random() < 0.5 else fields[:8] + content[24:29])
    return content[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[33:]


BY_ENDING: dict[str, tuple[Mutation, ...]] = {
    ".json": (*TEXT, json_value, json_value, json_value, json_value),
    ".jsonl": (*TEXT, json_line, json_line, json_line, json_line),
    ".npz": (zip_members,) * 5,
    ".safetensors": (safetensors_header,) * 8,
    ".parquet": (parquet_footer,) * 4 + (page_headers,) * 4,
    ".feather": (page_headers,) * 4,
    ".arrow": (page_headers,) * 4,
    ".png": (png_chunks,) * 4,
    ".jpg": (png_chunks,) * 2,
    "": (pickle_opcodes,) * 8,
}
"""What is done to files by their endings, besides what is done to all; others are text."""
