"""Recognising image files and their labels: lists, folders of images per label, bare images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from headtail.data.decode import ENDINGS
from headtail.data.file_kinds import TRAIN, FileKind, by_role
from headtail.data.reading import DataFiles
from headtail.errors import HeadtailError, Setting

LISTS = (".txt", ".json")
LOOKED_AT = 1 << 12
"""Bytes at the start or end of a file that show whether it is a list."""


def is_list(path: Path) -> bool:
    """Whether a file lists images with labels: its first line is `path label`, or it is JSON with
    annotations.
    """
    if not path.is_file():
        return False
    if path.suffix.lower() == ".json":
        return _has_annotations(path)
    first = _first_line(path).rsplit(maxsplit=1)
    return len(first) == 2 and first[0].lower().endswith(ENDINGS)


def is_bare(path: Path) -> bool:
    """Whether these are images without labels: one, a folder of them, or a list of paths alone."""
    if path.is_dir():
        return not has_class_folders(path) and any(is_image(file.name) for file in path.iterdir())
    if is_image(path.name):
        return True
    # Where only some lines have labels, the others have lost theirs.
    return is_image(_first_line(path).strip()) and all(map(is_image, lines_of(path)))


def lines_of(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def has_class_folders(folder: Path) -> bool:
    """Whether this folder has folders with images in them."""
    return any(next(images_under(inside), None) is not None for inside in folders_in(folder))


def folders_in(path: Path) -> list[Path]:
    """The folders in a folder, sorted."""
    return sorted(
        file for file in path.iterdir() if file.is_dir() and not file.name.startswith(".")
    )


def images_under(folder: Path) -> Iterator[str]:
    """Image files in the folder and in folders right inside it, as Tiny-ImageNet has them."""
    for place, inside, files in os.walk(folder):
        if place != str(folder):
            inside.clear()
        yield from (os.path.join(place, name) for name in files if is_image(name))


def is_image(name: str) -> bool:
    """Whether this is the name of an image file."""
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LOOKED_AT).decode("utf-8-sig", "replace").split("\n", 1)[0]


def _has_annotations(path: Path) -> bool:
    # They may come last in a large file, and a challenge's test images have none.
    if not path.stat().st_size:
        return False
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ).find(b'"annotations"') >= 0


def _is_unlabelled(path: Path) -> bool:
    """Whether this is a complete JSON file without annotations, as challenges have for testing."""
    if path.suffix.lower() != ".json" or _has_annotations(path):
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        return file.read().rstrip().endswith(b"}")


def _holds_list(path: Path, requested: bool) -> bool:
    return requested or path.suffix.lower() == ".json" or is_list(path)


def _find_lists(path: Path, requested: bool) -> DataFiles | None:
    """A list, the lists in a folder, or the folders `train` and `test` or `val` in it, which hold a
    folder of images per label.
    """
    if path.is_file():
        return DataFiles("images", path) if _holds_list(path, requested) else None
    return _lists_in(path) or _parts_in(path)


def _lists_in(folder: Path) -> DataFiles | None:
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in LISTS]
    held = [(file.stem.lower(), file) for file in files if file.is_file()]
    lists = {name: file for name, file in held if is_list(file)}
    if not lists:
        return None
    # A damaged list that has the name of a part is read, and refused, instead of being left out.
    damaged = {
        name: file for name, file in held if any(by_role({name: file})) and not _is_unlabelled(file)
    }
    lists = damaged | lists
    to_train = [file for name, file in lists.items() if re.search(TRAIN, name)]
    to_train = to_train or list(lists.values())
    if len(to_train) > 1:
        names = ", ".join(file.name for file in to_train)
        raise HeadtailError(
            f"`{folder}` holds {names}. Name the list to train on, and the other with ",
            Setting("test"),
            ".",
        )
    train = to_train[0]
    _, test, validation = by_role(lists)
    if train in (test, validation):
        raise HeadtailError(
            f"`{folder}` holds {train.name}, which is not for training. Add a list called `train`."
        )
    return DataFiles("images", train, test, None, validation)


def _parts_in(folder: Path) -> DataFiles | None:
    folders = {file.name.lower(): file for file in sorted(folder.iterdir()) if file.is_dir()}
    train, *others = by_role(folders)
    if train is None or not has_class_folders(train):
        return None
    for part in others:
        if part is not None and next(part.iterdir(), None) is None:
            raise HeadtailError(
                f"`{part}` is empty. Put a folder of images per label into it, or remove it."
            )
    test, validation = (
        part if part is not None and has_class_folders(part) else None for part in others
    )
    return DataFiles("images", train, test, None, validation)


def _holds_folders(path: Path, _: bool) -> bool:
    return path.is_dir() and has_class_folders(path)


def _find_folders(path: Path, _: bool) -> DataFiles | None:
    return DataFiles("images", path) if _holds_folders(path, False) else None


IMAGE_LISTS = FileKind("images", _holds_list, _find_lists)
IMAGE_FOLDERS = FileKind("images", _holds_folders, _find_folders)
"""Two kinds, because text in a folder counts more than folders in it."""
