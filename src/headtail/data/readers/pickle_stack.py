"""The values of a pickle while it is read: a stack, a memo, and what names may become.

No value is ever hashed, compared or written out: only text is a key, and tuples stay shallow.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

MOST_IN_TUPLE = 16
"""Values of a tuple; an array is made with at most 9."""
LONGEST_WORD = 200
"""Bytes of a name or a number that is written as text."""


class NotAdmittedError(Exception):
    """A pickle names something that is not admitted."""


class CutOffError(Exception):
    """A pickle ends too early."""


class NotCifarError(Exception):
    """A pickle is not one that CIFAR files are."""


class PickledArray:
    """In place of an array: the state that the pickle has for it, which is not trusted."""

    __slots__ = ("state",)

    def __init__(self, state: tuple[Any, ...] | None = None) -> None:
        self.state = state


class PickledType:
    """In place of `numpy.dtype`: its code, at most `LONGEST_WORD` characters."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code


class _Name:
    """The name of a function that a CIFAR file may mention."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word


_ARRAY, _KIND, _BYTES, _BUFFER, _CLASS = ("array", "kind", "bytes", "buffer", "class")
_ADMITTED = {
    "numpy.core.multiarray._reconstruct": _Name(_ARRAY),
    "numpy._core.multiarray._reconstruct": _Name(_ARRAY),
    "numpy.core.numeric._frombuffer": _Name(_BUFFER),
    "numpy._core.numeric._frombuffer": _Name(_BUFFER),
    "numpy.ndarray": _Name(_CLASS),
    "numpy.dtype": _Name(_KIND),
    "_codecs.encode": _Name(_BYTES),
}


class PickleStack:
    """A pickle being read.

    Args:
        content: of the file.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.made = 0

    def take(self, number: int) -> bytes:
        """The next bytes."""
        end = self.at + number
        if end > len(self.content):
            raise CutOffError
        taken = self.content[self.at : end]
        self.at = end
        return taken

    def unpack(self, layout: Struct) -> int:
        """The next number."""
        start = self.at
        self.at += layout.size
        if self.at > len(self.content):
            raise CutOffError
        return layout.unpack_from(self.content, start)[0]

    def line(self, longest: int = LONGEST_WORD) -> bytes:
        """What is before the next newline."""
        end = self.content.find(b"\n", self.at, self.at + longest + 1)
        if end < 0:
            if len(self.content) - self.at <= longest:
                raise CutOffError
            raise NotCifarError(f"a name or a number has more than {longest} bytes")
        taken = self.content[self.at : end]
        self.at = end + 1
        return taken

    def pop(self) -> Any:
        """The topmost value, which is above the last mark."""
        lowest = self.marks[-1] if self.marks else 0
        if len(self.stack) <= lowest:
            raise NotCifarError("a value is missing")
        return self.stack.pop()

    def top(self) -> Any:
        """The topmost value, which stays."""
        value = self.pop()
        self.stack.append(value)
        return value

    def above_mark(self) -> list[Any]:
        """The values above the last mark, which goes with them."""
        if not self.marks:
            raise NotCifarError("a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def push_tuple(self, values: list[Any]) -> None:
        """A tuple of a few values; tuples inside it hold no others, so that none grows deep."""
        if len(values) > MOST_IN_TUPLE:
            raise NotCifarError(f"a tuple holds {len(values):,} values")
        inside = (held for value in values if type(value) is tuple for held in value)
        if any(isinstance(held, tuple | list | dict) for held in inside):
            raise NotCifarError("tuples are nested deeply")
        self.stack.append(tuple(values))

    def set_items(self, values: list[Any]) -> None:
        """Keys and values, one after the other, into the dict below them."""
        entries = self.top()
        if type(entries) is not dict or len(values) % 2:
            raise NotCifarError("entries without a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, bytes):
                raise NotCifarError(f"a key is a {type(key).__name__}, not text")
            entries[key] = value

    def append_all(self, values: list[Any]) -> None:
        """Values into the list below them."""
        held = self.top()
        if type(held) is not list:
            raise NotCifarError("values without a list")
        held.extend(values)

    def remember(self, place: int) -> None:
        """Keep the topmost value."""
        self.memo[place] = self.top()

    def recall(self, place: int) -> None:
        """A value that was kept."""
        if place not in self.memo:
            raise NotCifarError("it refers to a value that it does not have")
        self.stack.append(self.memo[place])

    def name(self, module: Any, name: Any) -> None:
        """What a CIFAR file may name; anything else is refused."""
        if type(module) is not str or type(name) is not str:
            raise NotCifarError("a name is not text")
        word = f"{module[:LONGEST_WORD]}.{name[:LONGEST_WORD]}"
        if word not in _ADMITTED:
            raise NotAdmittedError(_printable(word))
        self.stack.append(_ADMITTED[word])

    def build(self) -> None:
        """The state of an array, or of a type: byte order, which single bytes do not have."""
        state = self.pop()
        value = self.top()
        if type(value) is PickledArray and type(state) is tuple:
            value.state = state
        elif type(value) is not PickledType:
            raise NotAdmittedError("setattr")

    def reduce(self) -> None:
        """What one of the admitted functions would make, as a plain value."""
        given = self.pop()
        function = self.pop()
        word = function.word if type(function) is _Name else None
        if word not in (_ARRAY, _KIND, _BYTES, _BUFFER) or type(given) is not tuple:
            raise NotCifarError("it calls something that CIFAR files do not call")
        if word == _ARRAY:
            self.stack.append(PickledArray())
        elif word == _KIND:
            self.stack.append(PickledType(_code(given)))
        elif word == _BYTES:
            self.stack.append(self.as_bytes(given))
        else:
            if len(given) != 4:
                raise NotCifarError("an array is not made of four values")
            raw, kind, shape, order = given
            state = (1, shape, kind, type(order) is str and order == "F", raw)
            self.stack.append(PickledArray(state))

    def as_bytes(self, given: tuple[Any, ...]) -> bytes:
        """How Python 3 writes bytes in an old protocol: text, and how it is encoded."""
        if not given:
            return b""
        text, *encoding = given
        if type(text) is not str or encoding not in ([], ["latin1"]):
            raise NotAdmittedError("_codecs.encode to something else than latin1")
        self.made += len(text)
        if self.made > len(self.content):
            raise NotCifarError("it encodes the same text again and again")
        try:
            return text.encode("latin1")
        except UnicodeEncodeError as error:
            raise NotCifarError("bytes are not in latin1") from error


def _code(given: tuple[Any, ...]) -> str:
    code = given[0] if given else ""
    if type(code) not in (str, bytes) or len(code) > LONGEST_WORD:
        raise NotCifarError("the type of an array is not text")
    return _printable(code.decode("latin1") if type(code) is bytes else code)


def _printable(word: str) -> str:
    """A short piece of a file, for a sentence."""
    return "".join(letter if letter.isprintable() else "?" for letter in word[:80])
