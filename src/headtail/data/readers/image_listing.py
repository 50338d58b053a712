"""Listings: which image files a part of a data set has, and their labels."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headtail.data.readers.image_kinds import folders_in, images_under, is_bare, is_image, lines_of
from headtail.errors import HeadtailError

MOST_LABELS = 10_000_000
LONGEST_NAME = 1000
"""Characters of a label's name that are kept."""
NO_LABEL = "-1"
"""The label of an image that has none."""


@dataclass(frozen=True)
class Listing:
    """Image files of one part of a data set.

    Attributes:
        where: the list, or the folder above the labels' folders.
        base: folder that names start from.
        names: of files.
        labels: `[n]` places in `classes`, or ids where there are none; −1 for none.
        classes: names that identify labels in all parts, or None where ids do.
        titles: names of the labels for people, or None.
    """

    where: Path
    base: Path
    names: list[str]
    labels: np.ndarray
    classes: list[str] | None = None
    titles: list[str] | None = None


def list_images(path: Path, may_lack: bool) -> Listing:
    """List the images of a list or a folder.

    Args:
        path: of the list or folder.
        may_lack: whether images may have no label.
    """
    if may_lack and is_bare(path):
        read = _without_labels
    elif path.is_dir():
        read = _from_folders
    elif path.suffix.lower() == ".json":
        read = _from_json
    else:
        read = partial(_from_lines, may_lack)
    listing = read(path)
    if not listing.names:
        raise HeadtailError(
            f"`{path}` lists no images. Write lines such as `train/cat/1.jpg 0`, or a folder of "
            "images per label."
        )
    return listing


def _from_lines(may_lack: bool, path: Path) -> Listing:
    names = []
    labels = []
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.rsplit(maxsplit=1)
                if not fields:
                    continue
                if len(fields) < 2 or not _is_label(fields[1], may_lack):
                    which = "a whole number from 0" + (", or -1 for none" if may_lack else "")
                    raise HeadtailError(
                        f"{path}, line {number:,}: `{line.strip()[:60]}` is not a path followed by "
                        f"a label id ({which}). Write for example `train/cat/1.jpg 0`."
                    )
                names.append(fields[0].strip())
                labels.append(int(fields[1]))
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"`{path}` is not text in UTF-8. Write lines such as `train/cat/1.jpg 0`."
        ) from error
    return Listing(path, path.parent, names, np.array(labels, np.int64))


def _is_label(text: str, may_lack: bool) -> bool:
    if may_lack and text == NO_LABEL:
        return True
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < MOST_LABELS


def _without_labels(path: Path) -> Listing:
    """Images without labels: one, those right in a folder, or those of a list."""
    if path.is_dir():
        base = path
        names = sorted(file.name for file in path.iterdir() if is_image(file.name))
    else:
        base = path.parent
        names = [path.name] if is_image(path.name) else lines_of(path)
    return Listing(path, base, names, np.full(len(names), -1, np.int64))


def _from_json(path: Path) -> Listing:
    try:
        held = json.loads(path.read_bytes())
        categories = {
            _whole(row, "id"): str(row.get("name", row["id"]))[:LONGEST_NAME]
            for row in _rows(held, "categories")
        }
        files = {_image(row, "id"): _text(row, "file_name") for row in _rows(held, "images")}
        pairs = [
            (_image(row, "image_id"), _whole(row, "category_id"))
            for row in _rows(held, "annotations")
        ]
    except KeyError as error:
        raise HeadtailError(
            f"`{path}` lacks {str(error)[:60]}; a JSON list has `images` (id, file_name), "
            "`annotations` (image_id, category_id) and `categories` (id, name). Give the file of "
            "training or validation."
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise HeadtailError(
            f"`{path}` is not a readable JSON list of images ({error}). Fetch it again."
        ) from error
    place = {category: i for i, category in enumerate(sorted(categories))}
    for image, category in pairs:
        if image not in files:
            problem = f"the image {image!r:.60}, which is not among its images"
        elif category not in place:
            problem = f"the category {category}, but its {len(place):,} categories do not hold it"
        else:
            continue
        raise HeadtailError(f"`{path}`: an annotation names {problem}. Fetch the file again.")
    names = [files[image] for image, _ in pairs]
    labels = np.array([place[category] for _, category in pairs], np.int64)
    classes = [str(category) for category in place]
    return Listing(
        path, path.parent, names, labels, classes, [categories[category] for category in place]
    )


def _whole(row: Any, name: str) -> int:
    """A whole number, which may be written as text; a fraction is not rounded."""
    value = row[name]
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if type(value) is not int or abs(value) >= 2**63:
        raise TypeError(f"`{name}` is {_shown(value)}, not a whole number")
    return value


def _image(row: Any, name: str) -> int | str:
    """The id of an image."""
    value = row[name]
    return value if isinstance(value, str) else _whole(row, name)


def _text(row: Any, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"`{name}` is {_shown(value)}, not text")
    return value


def _shown(value: Any) -> str:
    """A value of any size, in a few words."""
    if value is None or isinstance(value, bool | float):
        return str(value)
    return f"a {type(value).__name__}"


def _rows(held: Any, name: str) -> list[Any]:
    if not isinstance(held, dict) or not isinstance(held.get(name), list):
        raise KeyError(name)
    return held[name]


def _from_folders(path: Path) -> Listing:
    names = []
    labels = []
    classes = []
    for folder in folders_in(path):
        classes.append(folder.name)
        inside = sorted(os.path.relpath(file, path) for file in images_under(folder))
        names += inside
        labels += [len(classes) - 1] * len(inside)
    return Listing(path, path, names, np.array(labels, np.int64), classes)


def labels_of_training(
    listing: Listing, train: Listing, num_labels: int, may_lack: bool
) -> np.ndarray:
    """Labels as training numbers them; −1 for others, where an image may lack one."""
    if (listing.labels < 0).all():
        return listing.labels
    if (listing.classes is None) != (train.classes is None):
        raise HeadtailError(
            f"`{listing.where}` and `{train.where}` are of two formats. Write both in one."
        )
    if listing.classes is None:
        if may_lack:
            return np.where(listing.labels < num_labels, listing.labels, -1)
        if len(beyond := np.flatnonzero(listing.labels >= num_labels)):
            name = listing.names[int(beyond[0])]
            label = listing.labels[int(beyond[0])]
            raise HeadtailError(
                f"`{listing.where}`: `{name}` has the label {label}, but training "
                f"(`{train.where}`) has labels 0 … {num_labels - 1}. Correct the list."
            )
        return listing.labels
    place = {name: i for i, name in enumerate(train.classes or [])}
    ids = np.array([place.get(name, -1) for name in listing.classes])[listing.labels]
    if len(unknown := np.flatnonzero(ids < 0)) and not may_lack:
        label = listing.classes[listing.labels[int(unknown[0])]]
        raise HeadtailError(
            f"`{listing.where}` has the label `{label}`, which training (`{train.where}`) lacks. "
            "Add or drop it."
        )
    return ids
