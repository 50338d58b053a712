"""CIFAR-10 and CIFAR-100 in their official python files, which are pickles, and are not trusted."""

from __future__ import annotations

import pickle
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from headtail.core.targets import Ragged
from headtail.data.cache import Store, cached
from headtail.data.points import DataSet, Points, Progress
from headtail.errors import HeadtailError

SIDE = 32
LARGEST = 1 << 30
"""Bytes of a file that are read; the largest official one has 155 MB."""


@dataclass(frozen=True)
class Layout:
    """What one of the two sets calls its files and their entries."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    about: str
    num_labels: int
    labels: str
    names: str


TEN = Layout(
    "cifar-10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    about="batches.meta",
    num_labels=10,
    labels="labels",
    names="label_names",
)
HUNDRED = Layout(
    "cifar-100",
    "cifar-100-python",
    ("train",),
    "test",
    "meta",
    100,
    "fine_labels",
    "fine_label_names",
)


def find_cifar(path: Path) -> tuple[Layout, Path] | None:
    """The set in this folder or archive (`cifar-10-python.tar.gz`), or right inside this folder;
    None if there is none.
    """
    inside = [*path.glob("cifar-*")] if path.is_dir() else []
    found = [
        (layout, place)
        for place in (path, *sorted(inside))
        if (layout := _layout_of(place)) is not None
    ]
    if len({layout.name for layout, _ in found}) > 1:
        raise HeadtailError(
            f"`{path}` holds {' and '.join(place.name for _, place in found)}. Name one of them."
        )
    # An archive that was unpacked beside itself is not unpacked again.
    return min(found, key=lambda one: one[1].is_file(), default=None)


def read_cifar(layout: Layout, place: Path, progress: Progress | None = None) -> DataSet:
    """Read one of the sets, from its folder or from the archive as it is fetched; the second time
    it comes from the cache.

    A pickle can name any function, and have it called. Here it gets stand-ins for the few that the
    official files name, and a sentence for all others: nothing in the file is run.

    Args:
        layout: `TEN` or `HUNDRED`.
        place: the folder, or the archive.
        progress: told what is done, and how much of it.
    """
    needed = (*layout.train, layout.test)
    files = [place] if place.is_file() else [place / name for name in needed]
    about = place / layout.about
    files += [about] if about.is_file() else []
    for missing in (file for file in files if not file.is_file()):
        raise HeadtailError(
            f"`{missing}` is missing. {layout.name.upper()} has the files {', '.join(needed)}. "
            "Fetch it again."
        )
    entry = cached(files, {"reader": layout.name}, partial(_build, layout, place, progress))
    arrays = entry.arrays
    train, test = (
        Points(
            arrays[part],
            Ragged(arrays[f"{part}_labels"], arrays[f"{part}_offsets"]),
            layout.num_labels,
        )
        for part in ("train", "test")
    )
    return DataSet(
        layout.name,
        train,
        test,
        label_names=entry.facts["names"],
        notes=("Read as CIFAR.",),
        digest=entry.key,
    )


def _layout_of(place: Path) -> Layout | None:
    if place.is_file():
        named = re.fullmatch(r"cifar-(10|100)-python\.(tar|tar\.gz|tgz)", place.name)
        return None if named is None else TEN if named[1] == "10" else HUNDRED
    if place.name == TEN.folder or (place / TEN.train[0]).is_file():
        return TEN
    files = (*HUNDRED.train, HUNDRED.test, HUNDRED.about)
    return (
        HUNDRED
        if place.name == HUNDRED.folder or all((place / name).is_file() for name in files)
        else None
    )


def _build(layout: Layout, place: Path, progress: Progress | None, store: Store) -> None:
    content = _content_of(layout, place)
    for part, names in {"train": layout.train, "test": (layout.test,)}.items():
        number = 0
        for done, name in enumerate(names, start=1):
            path = place / name
            pictures, labels = _checked(path, unpickle(content(name), path), layout)
            store.append(part, pictures)
            store.append(f"{part}_labels", labels)
            number += len(labels)
            if progress is not None:
                progress(f"reading {name}", done / len(names))
        store.append(f"{part}_offsets", np.arange(number + 1))
    store.facts["names"] = _names(
        place / layout.about, content(layout.about, optional=True), layout
    )


def _content_of(layout: Layout, place: Path) -> Callable[..., bytes]:
    """Gives the content of a file by its name."""
    if place.is_dir():
        return lambda name, optional=False: (
            b"" if optional and not (place / name).is_file() else (place / name).read_bytes()
        )
    wanted = {*layout.train, layout.test, layout.about}
    found = {}
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                name = Path(member.name).name
                if (
                    name in wanted
                    and member.isfile()
                    and member.size < LARGEST
                    and (file := archive.extractfile(member))
                ):
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise HeadtailError(
            f"`{place}` is cut off or damaged ({error}). Fetch it again."
        ) from error
    if missing := wanted - found.keys() - {layout.about}:
        raise HeadtailError(f"`{place}` lacks {', '.join(sorted(missing))}. Fetch it again.")
    return lambda name, optional=False: found.get(name, b"") if optional else found[name]


def unpickle(content: bytes, path: Path) -> dict[str, Any]:
    """The entries of a CIFAR file, with plain bytes where it has arrays; whatever does not belong
    into one is refused.

    >>> unpickle(pickle.dumps({"labels": [1, 2]}), Path("test_batch"))
    {'labels': [1, 2]}
    >>> unpickle(pickle.dumps({"labels": print}), Path("test_batch"))
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `test_batch` asks for `builtins.print`, which no CIFAR file needs…
    """
    try:
        found = _Unpickler(BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise HeadtailError(
            f"`{path}` asks for `{error}`, which no CIFAR file needs: it is not an official file, "
            "and nothing in it was run. "
            "Fetch it again from where you trust."
        ) from error
    except Exception as error:  # what broken bytes make of a pickle can be anything
        cut = isinstance(error, (EOFError, struct.error)) or "exhausted" in str(error)
        what = (
            "is cut off"
            if cut
            else f"is no CIFAR file ({str(error).rstrip('.') or type(error).__name__})"
        )
        raise HeadtailError(f"`{path}` {what}. Fetch it again.") from error
    if not isinstance(found, dict):
        raise HeadtailError(
            f"`{path}` is no CIFAR file: it holds a {type(found).__name__}, not a dict. Fetch it "
            "again."
        )
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value
        for key, value in found.items()
    }


class _Refused(pickle.UnpicklingError):
    """A pickle names something that is not admitted."""


class _Array:
    """Stands for an array: keeps what a pickle says of it, and leaves it to us what to make of
    that.
    """

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        object.__setattr__(self, "state", state)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _Refused(f"ndarray.{name}")


class _Kind:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: str | bytes = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: one byte has none."""


class _Admitted:
    """A function that a CIFAR file may name; nothing can be set on it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *given: Any) -> Any:
        return self.make(*given)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("setattr")


def _latin1(text: Any = "", encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in an old protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused(f"_codecs.encode to {encoding!r}")
    return text.encode("latin1")


_NUMPY = {
    "_reconstruct": _Admitted(lambda *_: _Array()),
    "ndarray": _Admitted(_Array),
    "dtype": _Admitted(_Kind),
}
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _NUMPY["_reconstruct"],
    ("numpy._core.multiarray", "_reconstruct"): _NUMPY["_reconstruct"],
    ("numpy", "ndarray"): _NUMPY["ndarray"],
    ("numpy", "dtype"): _NUMPY["dtype"],
    ("_codecs", "encode"): _Admitted(_latin1),
}


class _Unpickler(pickle._Unpickler):
    """The one written in Python: in the one written in C, a few bytes can ask for gigabytes of
    memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}"[:80])
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"persistent object {pid!r:.40}")


def _checked(path: Path, found: dict[str, Any], layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """`[n, 3, 32, 32]` uint8 pictures and `[n]` int32 labels."""
    if not {"data", layout.labels} <= found.keys():
        held = ", ".join(f"`{key}`" for key in sorted(found)) or "nothing"
        raise HeadtailError(
            f"`{path}` holds {held}, but `data` and `{layout.labels}` are needed. Fetch "
            f"{layout.name} again."
        )
    labels = found[layout.labels]
    if (
        not isinstance(labels, list)
        or not labels
        or not all(type(label) is int for label in labels)
    ):
        raise HeadtailError(
            f"`{path}`: `{layout.labels}` must be a list of whole numbers. Fetch the file again."
        )
    for row, label in enumerate(labels):
        if not 0 <= label < layout.num_labels:
            told = (
                f"picture {row:,} (from 0) has the label {label}, but {layout.name} has labels 0 … "
                f"{layout.num_labels - 1}"
            )
            raise HeadtailError(f"`{path}`: {told}. Fetch the file again.")
    return _pictures(path, found["data"], len(labels)), np.array(labels, np.int32)


def _pictures(path: Path, data: Any, number: int) -> np.ndarray:
    wanted = (number, 3 * SIDE * SIDE)
    state = getattr(data, "state", None)
    if not isinstance(data, _Array) or not isinstance(state, tuple) or len(state) != 5:
        raise HeadtailError(f"`{path}`: `data` is no array. Fetch the file again.")
    _, shape, kind, by_column, raw = state
    if (
        shape != wanted
        or getattr(kind, "code", None) not in ("u1", "|u1")
        or not isinstance(raw, bytes)
    ):
        held = f"{getattr(kind, 'code', kind)!s:.20} of shape {shape!s:.60}"
        raise HeadtailError(
            f"`{path}`: `data` must be bytes (u1) of shape {wanted}, but is {held}. Fetch the file "
            "again."
        )
    if len(raw) != wanted[0] * wanted[1]:
        raise HeadtailError(
            f"`{path}`: `data` has {len(raw):,} bytes for {number:,} pictures of 3,072. Fetch the "
            "file again."
        )
    pixels = np.frombuffer(raw, np.uint8)
    rows = pixels.reshape(wanted[::-1]).T if by_column else pixels
    return rows.reshape(number, 3, SIDE, SIDE)


def _names(path: Path, content: bytes, layout: Layout) -> list[str] | None:
    """What the labels are called, where the file that tells it is there."""
    if not content:
        return None
    names = unpickle(content, path).get(layout.names)
    if (
        not isinstance(names, list)
        or len(names) != layout.num_labels
        or not all(isinstance(n, (str, bytes)) for n in names)
    ):
        raise HeadtailError(
            f"`{path}`: `{layout.names}` must be {layout.num_labels} names. Fetch the file again, "
            "or remove it."
        )
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
