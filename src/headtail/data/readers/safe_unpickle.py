"""Reading CIFAR's pickles: a small reader of the few opcodes that they need.

A pickle is a program. This reader has no opcode that calls, imports or sets anything: names of
functions are compared with a list, and what the official files build with them is kept as plain
values. Work and memory are bounded by the size of the file, whatever it holds.
"""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

from headtail.data.readers.pickle_stack import (
    CutOffError,
    NotAdmittedError,
    NotCifarError,
    PickleStack,
)
from headtail.errors import HeadtailError

MOST_STEPS = 4_000_000
"""Opcodes of a file that are read; the largest official one has about 500,000."""
LONGEST_NUMBER = 8
"""Bytes of a whole number."""
NEWEST_PROTOCOL = 5
_BYTE, _SHORT, _SIGNED, _UNSIGNED, _LONG, _DOUBLE = map(
    Struct, ("<B", "<H", "<i", "<I", "<Q", ">d")
)


def unpickle(content: bytes, path: Path) -> dict[str, Any]:
    """The entries of a CIFAR file, with `PickledArray` where it has arrays.

    >>> import pickle
    >>> unpickle(pickle.dumps({"labels": [1, 2]}), Path("test_batch"))
    {'labels': [1, 2]}
    >>> unpickle(pickle.dumps({"labels": print}), Path("test_batch"))
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `test_batch` asks for `builtins.print`, which no CIFAR…
    """
    try:
        entries = _read(PickleStack(content))
    except NotAdmittedError as error:
        raise HeadtailError(
            f"`{path}` asks for `{error}`, which no CIFAR file needs: it is not an official file, "
            "and nothing in it was run. Fetch it again from a source you trust."
        ) from error
    except CutOffError as error:
        raise HeadtailError(f"`{path}` is cut off. Fetch it again.") from error
    except NotCifarError as error:
        raise HeadtailError(f"`{path}` is not a CIFAR file ({error}). Fetch it again.") from error
    if not isinstance(entries, dict):
        raise HeadtailError(
            f"`{path}` is not a CIFAR file: it holds a {type(entries).__name__}, not a dict. Fetch "
            "it again."
        )
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: value
        for key, value in entries.items()
    }


def _read(pickle: PickleStack) -> Any:
    """The value that a pickle describes."""
    content = pickle.content
    for _ in range(MOST_STEPS):
        if pickle.at >= len(content):
            raise CutOffError
        code = content[pickle.at]
        pickle.at += 1
        if code == _STOP:
            return pickle.pop()
        step = _STEPS.get(code)
        if step is None:
            raise NotCifarError(
                f"the opcode {code:#04x} at byte {pickle.at - 1:,} has no place in one"
            )
        step(pickle)
    raise NotCifarError(f"it has more than {MOST_STEPS:,} opcodes")


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise NotCifarError("text is not UTF-8") from error


def _whole(raw: bytes) -> int:
    """A whole number in decimal digits, as the first protocol writes it."""
    number = raw.removesuffix(b"L")
    digits = number[1:] if number[:1] in (b"-", b"+") else number
    if not digits.isdigit() or len(digits) > 19:
        raise NotCifarError("a whole number is not one, or too large")
    return int(number)


def _int(pickle: PickleStack) -> None:
    raw = pickle.line()
    booleans = {b"00": False, b"01": True}
    pickle.stack.append(booleans[raw] if raw in booleans else _whole(raw))


def _float(pickle: PickleStack) -> None:
    try:
        pickle.stack.append(float(pickle.line()))
    except ValueError as error:
        raise NotCifarError("a number is not one") from error


def _long(pickle: PickleStack) -> None:
    number = pickle.unpack(_BYTE)
    if number > LONGEST_NUMBER:
        raise NotCifarError(f"a whole number has {number} bytes")
    pickle.stack.append(int.from_bytes(pickle.take(number), "little", signed=True))


def _quoted(pickle: PickleStack) -> None:
    """Bytes as Python 2 writes them in the first protocol: in quotes, with escapes."""
    raw = pickle.line(len(pickle.content))
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b'"', b"'"):
        raise NotCifarError("text has no quotes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that are none
            pickle.stack.append(codecs.escape_decode(raw[1:-1])[0])
    except ValueError as error:
        raise NotCifarError("text has a wrong escape") from error


def _escaped(pickle: PickleStack) -> None:
    """Text of the first protocol, with escapes."""
    try:
        pickle.stack.append(pickle.line(len(pickle.content)).decode("raw-unicode-escape"))
    except UnicodeDecodeError as error:
        raise NotCifarError("text has a wrong escape") from error


def _raw(layout: Struct) -> Callable[[PickleStack], None]:
    """Bytes with their number before them."""

    def step(pickle: PickleStack) -> None:
        number = pickle.unpack(layout)
        if number < 0:
            raise NotCifarError("bytes have a negative length")
        pickle.stack.append(pickle.take(number))

    return step


def _unicode(layout: Struct) -> Callable[[PickleStack], None]:
    """Text with the number of its bytes before it."""
    raw = _raw(layout)

    def step(pickle: PickleStack) -> None:
        raw(pickle)
        pickle.stack.append(_text(pickle.stack.pop()))

    return step


def _value(make: Callable[[], Any]) -> Callable[[PickleStack], None]:
    return lambda pickle: pickle.stack.append(make())


def _number(layout: Struct) -> Callable[[PickleStack], None]:
    return lambda pickle: pickle.stack.append(pickle.unpack(layout))


def _few(number: int) -> Callable[[PickleStack], None]:
    """A tuple of the topmost values."""
    return lambda pickle: pickle.push_tuple([pickle.pop() for _ in range(number)][::-1])


def _put(layout: Struct) -> Callable[[PickleStack], None]:
    return lambda pickle: pickle.remember(pickle.unpack(layout))


def _get(layout: Struct) -> Callable[[PickleStack], None]:
    return lambda pickle: pickle.recall(pickle.unpack(layout))


def _protocol(pickle: PickleStack) -> None:
    number = pickle.unpack(_BYTE)
    if number > NEWEST_PROTOCOL:
        raise NotCifarError(f"it is written in protocol {number}")


def _frame(pickle: PickleStack) -> None:
    """The size of a frame, which is not needed."""
    pickle.take(8)


def _drop(pickle: PickleStack) -> None:
    pickle.pop()


def _drop_marked(pickle: PickleStack) -> None:
    pickle.above_mark()


def _dict(pickle: PickleStack) -> None:
    values = pickle.above_mark()
    pickle.stack.append({})
    pickle.set_items(values)


def _set_item(pickle: PickleStack) -> None:
    value = pickle.pop()
    pickle.set_items([pickle.pop(), value])


def _global(pickle: PickleStack) -> None:
    pickle.name(_text(pickle.line()), _text(pickle.line()))


def _stack_global(pickle: PickleStack) -> None:
    name = pickle.pop()
    pickle.name(pickle.pop(), name)


_STOP = ord(".")
_STEPS: dict[int, Callable[[PickleStack], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): lambda pickle: pickle.marks.append(len(pickle.stack)),
    ord("0"): _drop,
    ord("1"): _drop_marked,
    ord("2"): lambda pickle: pickle.stack.append(pickle.top()),
    ord("N"): _value(lambda: None),
    0x88: _value(lambda: True),
    0x89: _value(lambda: False),
    ord("I"): _int,
    ord("J"): _number(_SIGNED),
    ord("K"): _number(_BYTE),
    ord("M"): _number(_SHORT),
    ord("L"): lambda pickle: pickle.stack.append(_whole(pickle.line())),
    0x8A: _long,
    ord("F"): _float,
    ord("G"): _number(_DOUBLE),
    ord("S"): _quoted,
    ord("T"): _raw(_SIGNED),
    ord("U"): _raw(_BYTE),
    ord("B"): _raw(_UNSIGNED),
    ord("C"): _raw(_BYTE),
    0x8E: _raw(_LONG),
    0x96: _raw(_LONG),
    0x98: lambda pickle: None,  # what is on top cannot be written to anyway
    ord("V"): _escaped,
    ord("X"): _unicode(_UNSIGNED),
    0x8C: _unicode(_BYTE),
    0x8D: _unicode(_LONG),
    ord(")"): _value(tuple),
    0x85: _few(1),
    0x86: _few(2),
    0x87: _few(3),
    ord("t"): lambda pickle: pickle.push_tuple(pickle.above_mark()),
    ord("]"): _value(list),
    ord("l"): lambda pickle: pickle.stack.append(pickle.above_mark()),
    ord("a"): lambda pickle: pickle.append_all([pickle.pop()]),
    ord("e"): lambda pickle: pickle.append_all(pickle.above_mark()),
    ord("}"): _value(dict),
    ord("d"): _dict,
    ord("s"): _set_item,
    ord("u"): lambda pickle: pickle.set_items(pickle.above_mark()),
    ord("p"): lambda pickle: pickle.remember(_whole(pickle.line())),
    ord("q"): _put(_BYTE),
    ord("r"): _put(_UNSIGNED),
    0x94: lambda pickle: pickle.remember(len(pickle.memo)),
    ord("g"): lambda pickle: pickle.recall(_whole(pickle.line())),
    ord("h"): _get(_BYTE),
    ord("j"): _get(_UNSIGNED),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): lambda pickle: pickle.reduce(),
    ord("b"): lambda pickle: pickle.build(),
}
