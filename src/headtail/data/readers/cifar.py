"""CIFAR-10 and CIFAR-100 in their official python files, which are pickles, and are not trusted."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headtail.core.targets import Ragged
from headtail.data.cache import Store, cached
from headtail.data.file_kinds import FileKind
from headtail.data.packed import MAX_EXPANSION, unpacked
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.pickle_stack import PickledArray, PickledType
from headtail.data.readers.safe_unpickle import unpickle
from headtail.data.reading import DataFiles, Reading
from headtail.errors import HeadtailError, cannot_read

SIDE = 32
LARGEST = 1 << 30
"""Bytes of a file that are read; the largest official one has 155 MB."""


@dataclass(frozen=True)
class Layout:
    """The names of the files and entries of one of the two sets."""

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
    folder="cifar-100-python",
    train=("train",),
    test="test",
    about="meta",
    num_labels=100,
    labels="fine_labels",
    names="fine_label_names",
)


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read the folder or archive that `find_cifar` found."""
    layout = _layout_of(files.train)
    assert layout is not None
    return read_cifar(layout, files.train, progress, reading.max_expansion)


def find_cifar(path: Path) -> tuple[Layout, Path] | None:
    """The set in this folder or archive (`cifar-10-python.tar.gz`), or right inside this folder.

    None if there is none.
    """
    inside = [*path.glob("cifar-*")] if path.is_dir() else []
    sets = [
        (layout, place)
        for place in (path, *sorted(inside))
        if (layout := _layout_of(place)) is not None
    ]
    if len({layout.name for layout, _ in sets}) > 1:
        raise HeadtailError(
            f"`{path}` holds {' and '.join(place.name for _, place in sets)}. Name one of them."
        )
    # Where an archive was unpacked next to itself, the folder is read.
    return min(sets, key=lambda layout_and_place: layout_and_place[1].is_file(), default=None)


def read_cifar(
    layout: Layout,
    place: Path,
    progress: Progress | None = None,
    max_expansion: float = MAX_EXPANSION,
) -> DataSet:
    """Read one of the sets from its folder or its archive, or take it from the cache.

    Args:
        layout: `TEN` or `HUNDRED`.
        place: the folder, or the archive.
        progress: called with what is being done and the share of it that is done.
        max_expansion: how many times its size an archive may become.
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
    build = partial(_build, layout, place, max_expansion, progress)
    entry = cached(files, {"reader": layout.name}, build)
    arrays = entry.arrays
    points = {}
    for part in ("train", "test"):
        labels = Ragged(arrays[f"{part}_labels"], arrays[f"{part}_offsets"])
        points[part] = Points(arrays[part], labels, layout.num_labels)
    names = entry.facts["names"]
    notes = ("Read as CIFAR.",)
    return DataSet(layout.name, **points, label_names=names, notes=notes, digest=entry.key)


def _layout_of(place: Path) -> Layout | None:
    if place.is_file():
        named = re.fullmatch(r"cifar-(10|100)-python\.(tar|tar\.gz|tgz)", place.name)
        return None if named is None else TEN if named[1] == "10" else HUNDRED
    if place.name == TEN.folder or (place / TEN.train[0]).is_file():
        return TEN
    files = (*HUNDRED.train, HUNDRED.test, HUNDRED.about)
    complete = all((place / name).is_file() for name in files)
    return HUNDRED if place.name == HUNDRED.folder or complete else None


def _build(
    layout: Layout, place: Path, max_expansion: float, progress: Progress | None, store: Store
) -> None:
    content = _content_of(layout, place, max_expansion)
    for part, names in {"train": layout.train, "test": (layout.test,)}.items():
        number = 0
        for done, name in enumerate(names, start=1):
            path = place / name
            images, labels = _checked(path, unpickle(content(name), path), layout)
            store.append(part, images)
            store.append(f"{part}_labels", labels)
            number += len(labels)
            if progress is not None:
                progress(f"reading {name}", done / len(names))
        store.append(f"{part}_offsets", np.arange(number + 1))
    about = content(layout.about, optional=True)
    store.facts["names"] = _names(place / layout.about, about, layout)


def _content_of(layout: Layout, place: Path, max_expansion: float) -> Callable[..., bytes]:
    """A function from the name of a file to its content, which may be empty if it is optional."""
    if place.is_dir():
        return partial(_read_bytes, place)
    held = _unpacked(layout, place, max_expansion)
    return lambda name, optional=False: held.get(name, b"") if optional else held[name]


def _read_bytes(folder: Path, name: str, optional: bool = False) -> bytes:
    path = folder / name
    if optional and not path.is_file():
        return b""
    try:
        if path.stat().st_size >= LARGEST:
            raise HeadtailError(
                f"`{path}` has {path.stat().st_size:,} bytes, more than any CIFAR file. Fetch it "
                "again."
            )
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def _unpacked(layout: Layout, place: Path, max_expansion: float) -> dict[str, bytes]:
    """The content of the archive's files, by their names."""
    wanted = {*layout.train, layout.test, layout.about}
    held = {}
    try:
        # As a stream, so that headers that ask for gigabytes end with what is there.
        with (
            unpacked(place, max_expansion) as (content, _),
            tarfile.open(fileobj=content, mode="r|") as archive,
        ):
            for member in archive:
                name = Path(member.name).name
                if name not in wanted or not member.isfile() or member.size >= LARGEST:
                    continue
                if file := archive.extractfile(member):
                    held[name] = file.read()
    except HeadtailError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise HeadtailError(
            f"`{place}` is cut off or damaged ({error}). Fetch it again."
        ) from error
    if missing := wanted - held.keys() - {layout.about}:
        raise HeadtailError(f"`{place}` lacks {', '.join(sorted(missing))}. Fetch it again.")
    return held


def _checked(path: Path, entries: dict[str, Any], layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """`[n, 3, 32, 32]` uint8 images and `[n]` int32 labels."""
    if not {"data", layout.labels} <= entries.keys():
        shown = [f"`{key[:40]}`" for key in sorted(entries)]
        held = ", ".join([*shown[:8], *(["…"] if len(shown) > 8 else [])]) or "nothing"
        raise HeadtailError(
            f"`{path}` holds {held}, but `data` and `{layout.labels}` are needed. Fetch "
            f"{layout.name} again."
        )
    labels = entries[layout.labels]
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not whole or not labels:
        raise HeadtailError(
            f"`{path}`: `{layout.labels}` must be a list of whole numbers. Fetch the file again."
        )
    for row, label in enumerate(labels):
        if not 0 <= label < layout.num_labels:
            raise HeadtailError(
                f"`{path}`: image {row:,} (from 0) has the label {label}, but {layout.name} has "
                f"labels 0 … {layout.num_labels - 1}. Fetch the file again."
            )
    return _images(path, entries["data"], len(labels)), np.array(labels, np.int32)


def _images(path: Path, data: Any, number: int) -> np.ndarray:
    wanted = (number, 3 * SIDE * SIDE)
    state = data.state if isinstance(data, PickledArray) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise HeadtailError(f"`{path}`: `data` is not an array. Fetch the file again.")
    _, shape, kind, by_column, raw = state
    code = kind.code if isinstance(kind, PickledType) else f"a {type(kind).__name__}"
    # Only numbers are compared and written: a shape that is anything else may be endless.
    numbers = isinstance(shape, tuple) and all(type(size) is int for size in shape)
    if not numbers or shape != wanted or code not in ("u1", "|u1") or not isinstance(raw, bytes):
        held = f"{code:.20} of shape {shape!s:.60}" if numbers else f"{code:.20} without a shape"
        raise HeadtailError(
            f"`{path}`: `data` must be bytes (u1) of shape {wanted}, but is {held}. Fetch the file "
            "again."
        )
    if len(raw) != wanted[0] * wanted[1]:
        raise HeadtailError(
            f"`{path}`: `data` has {len(raw):,} bytes for {number:,} images of 3,072. Fetch the "
            "file again."
        )
    pixels = np.frombuffer(raw, np.uint8)
    rows = (
        pixels.reshape(wanted[::-1]).T if type(by_column) in (bool, int) and by_column else pixels
    )
    return rows.reshape(number, 3, SIDE, SIDE)


def _names(path: Path, content: bytes, layout: Layout) -> list[str] | None:
    """The names of the labels, where the file with them is there."""
    if not content:
        return None
    names = unpickle(content, path).get(layout.names)
    if not isinstance(names, list) or len(names) != layout.num_labels or not _are_text(names):
        raise HeadtailError(
            f"`{path}`: `{layout.names}` must be {layout.num_labels} names. Fetch the file again, "
            "or remove it."
        )
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]


def _are_text(names: list[Any]) -> bool:
    return all(isinstance(name, (str, bytes)) for name in names)


def _find(path: Path, _: bool) -> DataFiles | None:
    found = find_cifar(path)
    return None if found is None else DataFiles("CIFAR", found[1])


def _never(_path: Path, _requested: bool) -> bool:
    return False


CIFAR = FileKind("CIFAR", _never, _find)
"""It has a test part, so none can be named."""
