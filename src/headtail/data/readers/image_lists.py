"""Which picture files there are, and their labels: lists of `path label` lines, iNaturalist's JSON,
or a folder a label.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtail.core.targets import Ragged
from headtail.data.cache import Store, cached
from headtail.data.decode import ENDINGS
from headtail.data.image_files import CHECKED_AT_ONCE, ImageFiles
from headtail.data.points import DataSet, Points, Progress
from headtail.data.split import hold_out
from headtail.errors import HeadtailError

MOST_LABELS = 10_000_000
NONE = "-1"
"""The label of a picture that has none."""
LOOKED_AT = 1 << 12
"""Bytes of a file by which a list is told."""
TOLD = 10_000
"""Files between two words about progress."""


@dataclass(frozen=True)
class Listing:
    """Pictures of one part of a data set.

    Attributes:
        where: the list, or the folder above the labels' folders.
        base: folder that names start from.
        names: of files.
        labels: `[n]` places in `classes`, or ids where there are none; −1 for none.
        classes: what tells labels apart in all parts, or None where ids do.
        titles: what the labels are called, or None.
    """

    where: Path
    base: Path
    names: list[str]
    labels: np.ndarray
    classes: list[str] | None = None
    titles: list[str] | None = None


def read_images(
    train: Path,
    test: Path | None = None,
    validation: Path | None = None,
    *,
    root: Path | None = None,
    holdout: float = 0.2,
    skip_bad_images: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    """List pictures that stay in their files.

    Each part is a text file of `path label` lines (as those of ImageNet-LT, Places-LT and
    iNaturalist 2018), a JSON file of iNaturalist (`images`, `annotations`, `categories`), or a
    folder with a folder of pictures a label. Test pictures with the label −1, or one that training
    has not, are answered, but not measured; so are those of a test part without labels: a picture,
    a folder of them, or a list of paths alone.

    Args:
        train: a list or folder.
        test: likewise, or None.
        validation: likewise, or None.
        root: where relative paths are looked up first; then beside their list.
        holdout: share of the pictures that is kept for testing where there is no test part.
        skip_bad_images: leave pictures out that are missing or cannot be decoded, and count them.
            Every file is decoded once for that, in worker processes, and the result is remembered.
        progress: told what is done, and how much of it.
    """
    given = {"train": train, "test": test, "validation": validation}
    listings = {
        name: _listing(path, name == "test") for name, path in given.items() if path is not None
    }
    first = listings["train"]
    num_labels = len(first.classes) if first.classes is not None else int(first.labels.max()) + 1
    points = {}
    notes = ["Read as picture files."]
    marks = []
    for name, listing in listings.items():
        labels = (
            listing.labels
            if name == "train"
            else _labels_of_training(listing, first, num_labels, name == "test")
        )
        if unknown := int((labels < 0).sum()):
            told = (
                f"{unknown:,} of {len(labels):,} test pictures have a label that never occurs in "
                "training, or none"
            )
            notes.append(f"{told}: they are answered, but not measured.")
        files, kept, mark, told = _files(
            replace(listing, labels=labels), root, skip_bad_images, progress
        )
        known = torch.from_numpy(labels[kept] >= 0)
        values = torch.from_numpy(labels[kept].astype(np.int32))[known]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
        points[name] = Points(
            files, Ragged(values, offsets), num_labels, rows=torch.from_numpy(kept)
        )
        empty = num_labels - len(values.unique())
        notes += (
            [f"{empty:,} of the {num_labels:,} labels have no training picture."]
            if name == "train" and empty
            else []
        )
        notes += told
        marks.append(mark)
    whole = points["train"] if test is None else None
    if whole is not None:
        points["train"], points["test"] = hold_out(whole, holdout)
        marks.append(f"{holdout:g}")
        notes.append(
            f"There are no test pictures: {holdout:.0%} of the pictures are held out for testing."
        )
    mark = hashlib.blake2b(" ".join(marks).encode(), digest_size=16).hexdigest()
    parts = points["train"], points["test"], points.get("validation")
    names = first.titles or first.classes
    return DataSet(
        _name(train), *parts, label_names=names, notes=tuple(notes), digest=mark, whole=whole
    )


def is_list(path: Path) -> bool:
    """Whether a file is a list of pictures with labels: its first line is `path label`, or it is
    JSON with annotations.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        # the test pictures of a challenge have no annotations, and these come last
        if path.suffix.lower() == ".json":
            return (
                bool(path.stat().st_size)
                and mmap(file.fileno(), 0, access=ACCESS_READ).find(b'"annotations"') >= 0
            )
        first = (
            file.read(LOOKED_AT).decode("utf-8-sig", "replace").split("\n", 1)[0].rsplit(maxsplit=1)
        )
    return len(first) == 2 and first[0].lower().endswith(ENDINGS)


def is_bare(path: Path) -> bool:
    """Whether these are pictures without labels: one, a folder of them, or a list of paths alone."""
    if path.is_dir():
        return not has_class_folders(path) and any(_is_picture(one.name) for one in path.iterdir())
    if _is_picture(path.name):
        return True
    with path.open("rb") as file:
        first = file.read(LOOKED_AT).decode("utf-8-sig", "replace").split("\n", 1)[0].strip()
    # where some have labels, one was lost
    return _is_picture(first) and all(map(_is_picture, _lines(path)))


def _lines(path: Path) -> list[str]:
    return [
        line.strip()
        for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        if line.strip()
    ]


def is_unlabelled(path: Path) -> bool:
    """Whether this is a whole JSON file without annotations, as those of a challenge's test
    pictures are.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        return (
            path.suffix.lower() == ".json"
            and file.read().rstrip().endswith(b"}")
            and not is_list(path)
        )


def has_class_folders(folder: Path) -> bool:
    """Whether this folder has folders with pictures in them."""
    return any(next(_pictures_under(one), None) is not None for one in _folders(folder))


def _listing(path: Path, may_lack: bool) -> Listing:
    read = (
        _from_folders
        if path.is_dir()
        else _from_json
        if path.suffix.lower() == ".json"
        else partial(_from_lines, may_lack)
    )
    if may_lack and is_bare(path):
        read = _alone
    listing = read(path)
    if not listing.names:
        raise HeadtailError(
            f"`{path}` lists no picture. Write lines such as `train/cat/1.jpg 0`, or a folder of "
            "pictures a label."
        )
    return listing


def _from_lines(may_lack: bool, path: Path) -> Listing:
    names = []
    labels = []
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not (fields := line.rsplit(maxsplit=1)):
                    continue
                known = (
                    fields[-1].isascii()
                    and fields[-1].isdigit()
                    and int(fields[-1][:20]) < MOST_LABELS
                )
                if len(fields) < 2 or not (known or (may_lack and fields[1] == NONE)):
                    which = (
                        "a whole number from 0, or -1 for none"
                        if may_lack
                        else "a whole number from 0"
                    )
                    told = f"`{line.strip()[:60]}` is no path with a label id ({which}) behind it"
                    raise HeadtailError(
                        f"{path}, line {number:,}: {told}. Write for example `train/cat/1.jpg 0`."
                    )
                names.append(fields[0].strip())
                labels.append(int(fields[1]))
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"`{path}` is not text in UTF-8. Write lines such as `train/cat/1.jpg 0`."
        ) from error
    return Listing(path, path.parent, names, np.array(labels, np.int64))


def _alone(path: Path) -> Listing:
    """Pictures without labels: one, those right in a folder, or those of a list."""
    if path.is_dir():
        base = path
        names = sorted(one.name for one in path.iterdir() if _is_picture(one.name))
    else:
        base = path.parent
        names = [path.name] if _is_picture(path.name) else _lines(path)
    return Listing(path, base, names, np.full(len(names), -1, np.int64))


def _from_json(path: Path) -> Listing:
    try:
        held = json.loads(path.read_bytes())
        categories = {
            int(one["id"]): str(one.get("name", one["id"])) for one in _rows(held, "categories")
        }
        files = {one["id"]: str(one["file_name"]) for one in _rows(held, "images")}
        found = [(one["image_id"], int(one["category_id"])) for one in _rows(held, "annotations")]
    except KeyError as error:
        needed = (
            "`images` (id, file_name), `annotations` (image_id, category_id) and `categories` (id, "
            "name)"
        )
        raise HeadtailError(
            f"`{path}` lacks {error}; a JSON list has {needed}. Give the file of training or "
            "validation."
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise HeadtailError(
            f"`{path}` is no readable JSON list of pictures ({error}). Fetch it again."
        ) from error
    place = {category: i for i, category in enumerate(sorted(categories))}
    for image, category in found:
        if image not in files or category not in place:
            what = (
                f"the image {image!r}, which is not among its images"
                if image not in files
                else f"the category {category}"
            )
            more = (
                "" if image not in files else f", but its {len(place):,} categories do not hold it"
            )
            raise HeadtailError(
                f"`{path}`: an annotation names {what}{more}. Fetch the file again."
            )
    labels = np.array([place[category] for _, category in found], np.int64)
    titles = [categories[category] for category in sorted(categories)]
    return Listing(
        path,
        path.parent,
        [files[image] for image, _ in found],
        labels,
        [str(one) for one in sorted(place)],
        titles,
    )


def _rows(held: Any, name: str) -> list[Any]:
    if not isinstance(held, dict) or not isinstance(held.get(name), list):
        raise KeyError(name)
    return held[name]


def _from_folders(path: Path) -> Listing:
    names = []
    labels = []
    classes = []
    for folder in _folders(path):
        classes.append(folder.name)
        inside = sorted(os.path.relpath(one, path) for one in _pictures_under(folder))
        names += inside
        labels += [len(classes) - 1] * len(inside)
    return Listing(path, path, names, np.array(labels, np.int64), classes)


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def _pictures_under(folder: Path) -> Iterator[str]:
    """In the folder itself and in folders right inside it, as Tiny-ImageNet has them, but no
    deeper.
    """
    for place, inside, files in os.walk(folder):
        if place != str(folder):
            inside.clear()
        yield from (os.path.join(place, name) for name in files if _is_picture(name))


def _is_picture(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _labels_of_training(
    listing: Listing, train: Listing, num_labels: int, may_lack: bool
) -> np.ndarray:
    """Labels as training numbers them; −1 for others, where a picture may lack one."""
    if (listing.labels < 0).all():
        return listing.labels
    if (listing.classes is None) != (train.classes is None):
        raise HeadtailError(
            f"`{listing.where}` and `{train.where}` are of two formats. Write both alike."
        )
    if listing.classes is None:
        if may_lack:
            return np.where(listing.labels < num_labels, listing.labels, -1)
        if len(beyond := np.flatnonzero(listing.labels >= num_labels)):
            name = listing.names[int(beyond[0])]
            label = listing.labels[int(beyond[0])]
            told = (
                f"`{name}` has the label {label}, but training (`{train.where}`) has labels 0 … "
                f"{num_labels - 1}"
            )
            raise HeadtailError(f"`{listing.where}`: {told}. Correct the list.")
        return listing.labels
    place = {name: i for i, name in enumerate(train.classes or [])}
    ids = np.array([place.get(name, -1) for name in listing.classes])[listing.labels]
    if len(unknown := np.flatnonzero(ids < 0)) and not may_lack:
        label = listing.classes[listing.labels[int(unknown[0])]]
        raise HeadtailError(
            f"`{listing.where}` has the label `{label}`, which training (`{train.where}`) has not. "
            "Add or drop it."
        )
    return ids


def _files(
    listing: Listing, root: Path | None, skip: bool, progress: Progress | None
) -> tuple[ImageFiles, np.ndarray, str, list[str]]:
    """The files, which of the listing they are, a mark of them, and notes."""
    paths, sizes, times = _located(listing, root, progress)
    missing = np.flatnonzero(sizes < 0)
    if len(missing) and not skip:
        raise HeadtailError(_about_missing(listing, missing, root))
    kept = np.flatnonzero(sizes >= 0)
    notes = []
    if len(missing):
        first = f"the first is `{listing.names[int(missing[0])]}`"
        notes.append(
            f"Left out {len(missing):,} of {len(paths):,} pictures of {listing.where.name} that do "
            f"not exist; {first}."
        )
    if skip and len(kept):
        files = ImageFiles(tuple(paths[i] for i in kept))
        facts = _mark(listing, kept, [sizes, times])
        bad, first = _undecodable(files, facts, progress)
        if len(bad):
            notes.append(
                f"Left out {len(bad):,} of {len(paths):,} pictures of {listing.where.name}; the "
                f"first: {first}."
            )
        kept = np.delete(kept, bad)
    if not len(kept):
        raise HeadtailError(
            f"`{listing.where}`: none of its {len(paths):,} pictures can be used. {' '.join(notes)}"
        )
    return ImageFiles(tuple(paths[i] for i in kept)), kept, _mark(listing, kept, [sizes]), notes


def _located(
    listing: Listing, root: Path | None, progress: Progress | None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Where each file is, its size (−1 where it is not) and its time."""
    bases = [str(base) for base in (root, listing.base) if base is not None]
    paths = []
    sizes = np.full(len(listing.names), -1)
    times = np.zeros(len(listing.names), np.int64)
    for i, name in enumerate(listing.names):
        candidates = [os.path.join(base, name) for base in bases]
        for path in candidates:
            try:
                found = os.stat(path)
            except (OSError, ValueError):
                continue
            sizes[i] = found.st_size
            times[i] = found.st_mtime_ns
            break
        else:
            path = candidates[0]
        paths.append(path)
        if progress is not None and i % TOLD == 0:
            progress(f"looking for the pictures of {listing.where.name}", i / len(listing.names))
    return paths, sizes, times


def _about_missing(listing: Listing, missing: np.ndarray, root: Path | None) -> str:
    bases = " nor in ".join(f"`{base}`" for base in (root, listing.base) if base is not None)
    many = (
        f", and {len(missing) - 1:,} more of its {len(listing.names):,}" if len(missing) > 1 else ""
    )
    advice = "Say where paths start from (`root`), or leave such pictures out (`skip_bad_images`)."
    where = f"{'neither' if root is not None else 'not'} in {bases}"
    return (
        f"`{listing.where}` names `{listing.names[int(missing[0])]}`, which is {where}{many}. "
        f"{advice}"
    )


def _undecodable(files: ImageFiles, mark: str, progress: Progress | None) -> tuple[np.ndarray, str]:
    """Places of the files that cannot be decoded, and what is wrong with the first; found once,
    then remembered.
    """

    def build(store: Store) -> None:
        found: dict[int, str] = {}
        workers = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        for done, told in enumerate(files.bad(workers if len(files) > 4 * CHECKED_AT_ONCE else 0)):
            found |= told
            if progress is not None:
                progress(
                    "decoding every picture once", min(1.0, done * CHECKED_AT_ONCE / len(files))
                )
        store.append("bad", np.array(sorted(found), np.int64))
        store.facts["first"] = found[min(found)].split(". Mend")[0] if found else ""

    entry = cached([], {"reader": "picture check", "of": mark}, build)
    return entry.arrays["bad"].numpy(), entry.facts["first"]


def _mark(listing: Listing, kept: np.ndarray, numbers: list[np.ndarray]) -> str:
    """Changes with the names, labels and sizes of the files; their content would take too long."""
    mark = hashlib.blake2b(
        "\n".join(listing.names[i] for i in kept).encode("utf-8", "surrogateescape"), digest_size=16
    )
    for array in (listing.labels, *numbers):
        mark.update(np.ascontiguousarray(array[kept], np.int64).tobytes())
    return mark.hexdigest()


def _name(path: Path) -> str:
    return path.name if path.is_dir() else path.stem
