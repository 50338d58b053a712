"""Unpickling CIFAR's files without running anything that they name."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from headtail.errors import HeadtailError


def unpickle(content: bytes, path: Path) -> dict[str, Any]:
    """The entries of a CIFAR file, with `PickledArray` where it has arrays.

    A pickle can name any function, and have it called. Here it gets substitutes for the few that
    the official files name, and an error for all others: nothing in the file is run.

    >>> unpickle(pickle.dumps({"labels": [1, 2]}), Path("test_batch"))
    {'labels': [1, 2]}
    >>> unpickle(pickle.dumps({"labels": print}), Path("test_batch"))
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `test_batch` asks for `builtins.print`, which no CIFAR…
    """
    try:
        entries = _Unpickler(BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise HeadtailError(
            f"`{path}` asks for `{error}`, which no CIFAR file needs: it is not an official file, "
            "and nothing in it was run. Fetch it again from a source you trust."
        ) from error
    except Exception as error:  # broken bytes can make a pickle do anything
        cut = isinstance(error, (EOFError, struct.error)) or "exhausted" in str(error)
        why = str(error).rstrip(".") or type(error).__name__
        problem = "is cut off" if cut else f"is not a CIFAR file ({why})"
        raise HeadtailError(f"`{path}` {problem}. Fetch it again.") from error
    if not isinstance(entries, dict):
        raise HeadtailError(
            f"`{path}` is not a CIFAR file: it holds a {type(entries).__name__}, not a dict. Fetch "
            "it again."
        )
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value
        for key, value in entries.items()
    }


class _Refused(pickle.UnpicklingError):
    """A pickle names something that is not admitted."""


class PickledArray:
    """In place of an array: keeps the state that the pickle has for it, which is not trusted."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        object.__setattr__(self, "state", state)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _Refused(f"ndarray.{name}")


class PickledType:
    """In place of `numpy.dtype`."""

    def __init__(self, code: str | bytes = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which single bytes do not have."""


class _Admitted:
    """A function that a CIFAR file may name; nothing can be set on it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("setattr")


def _latin1(text: Any = "", encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in an old protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused(f"_codecs.encode to {encoding!r}")
    return text.encode("latin1")


_NUMPY = {
    "_reconstruct": _Admitted(lambda *_: PickledArray()),
    "ndarray": _Admitted(PickledArray),
    "dtype": _Admitted(PickledType),
}
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _NUMPY["_reconstruct"],
    ("numpy._core.multiarray", "_reconstruct"): _NUMPY["_reconstruct"],
    ("numpy", "ndarray"): _NUMPY["ndarray"],
    ("numpy", "dtype"): _NUMPY["dtype"],
    ("_codecs", "encode"): _Admitted(_latin1),
}


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python: in the one in C, a few bytes can ask for gigabytes of memory."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}"[:80])
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"persistent object {pid!r:.40}")
