"""Image files in lists of `path label` lines, iNaturalist's JSON, or a folder per label."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headtail.core.targets import Ragged
from headtail.data.image_files import ImageFiles
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.image_listing import Listing, labels_of_training, list_images
from headtail.data.readers.located_images import files_of
from headtail.data.reading import DataFiles, Reading, data_name
from headtail.data.split import with_test_part


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read image files as `reading` says."""
    files = files.tested_on_validation()
    data = read_image_files(
        files.train,
        files.test,
        files.validation,
        root=reading.root,
        holdout=reading.holdout,
        skip_bad_images=reading.skip_bad_images,
        progress=progress,
    )
    return replace(data, name=data_name(files.train, data.name))


def read_image_files(
    train: Path,
    test: Path | None = None,
    validation: Path | None = None,
    *,
    root: Path | None = None,
    holdout: float = 0.2,
    skip_bad_images: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    """List images that stay in their files.

    Each part is a text file of `path label` lines (as those of ImageNet-LT, Places-LT and
    iNaturalist 2018), a JSON file of iNaturalist (`images`, `annotations`, `categories`), or a
    folder with a folder of images per label. Test images with the label −1, or one that training
    lacks, are answered, but not measured; so are those of a test part without labels: an image, a
    folder of them, or a list of paths alone.

    Args:
        train: a list or folder.
        test: likewise, or None.
        validation: likewise, or None.
        root: where relative paths are looked up first; then in the folder of their list.
        holdout: share of the images kept for testing without a test part.
        skip_bad_images: leave images out that are missing or cannot be decoded, and count them.
            Every file is decoded once for that, in worker processes, and the result is cached.
        progress: called with what is being done and the share of it that is done.
    """
    parts = {"train": train, "test": test, "validation": validation}
    listings = {
        name: list_images(path, name == "test") for name, path in parts.items() if path is not None
    }
    first = listings["train"]
    num_labels = len(first.classes) if first.classes is not None else int(first.labels.max()) + 1
    for name, listing in listings.items():
        if name != "train":
            labels = labels_of_training(listing, first, num_labels, name == "test")
            listings[name] = replace(listing, labels=labels)
    points: dict[str, Points] = {}
    notes = ["Read as image files."]
    marks = []
    for name, listing in listings.items():
        notes += _unknown_labels(listing)
        files, kept, mark, left_out = files_of(listing, root, skip_bad_images, progress)
        points[name] = _points(files, listing, kept, num_labels)
        if name == "train":
            notes += _empty_labels(points[name])
        notes += left_out
        marks.append(mark)
    points, whole, _, held = with_test_part(points, holdout, "images")
    if whole is not None:
        marks.append(f"{holdout:g}")
    name = train.name if train.is_dir() else train.stem
    mark = hashlib.blake2b(" ".join(marks).encode(), digest_size=16).hexdigest()
    names = first.titles or first.classes
    about = {"label_names": names, "notes": (*notes, *held), "digest": mark, "whole": whole}
    return DataSet(name, **points, **about)


def _points(files: ImageFiles, listing: Listing, kept: np.ndarray, num_labels: int) -> Points:
    labels = listing.labels[kept]
    known = torch.from_numpy(labels >= 0)
    values = torch.from_numpy(labels.astype(np.int32))[known]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
    return Points(files, Ragged(values, offsets), num_labels, rows=torch.from_numpy(kept))


def _unknown_labels(listing: Listing) -> list[str]:
    """A note, if images of a test part have no label that training knows."""
    unknown = int((listing.labels < 0).sum())
    if not unknown:
        return []
    return [
        f"{unknown:,} of {len(listing.labels):,} test images have a label that never occurs in "
        "training, or none: they are answered, but not measured."
    ]


def _empty_labels(train: Points) -> list[str]:
    """A note, if labels have no training image."""
    empty = train.num_labels - len(train.labels.values.unique())
    if not empty:
        return []
    return [f"{empty:,} of the {train.num_labels:,} labels have no training image."]
