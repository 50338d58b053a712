"""Public sets of images, and whether data have their counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headtail.data.points import DataSet, Points


@dataclass(frozen=True)
class KnownImages:
    """A public set of images with one label each.

    Attributes:
        name: as the literature writes it.
        num_labels: L.
        num_train: training images.
        num_test: test images; where their labels are secret, validation images.
        most: training images of the most frequent label.
        least: of the rarest.
        side: pixels of a side where all images have one size, else None.
        profiles: training images that a profile at imbalance 100 leaves.
        published: whether others have published these counts.
    """

    name: str
    num_labels: int
    num_train: int
    num_test: int
    most: int
    least: int
    side: int | None = None
    profiles: tuple[tuple[str, int], ...] = ()
    published: bool = True


# Counts: CIFAR, Krizhevsky (2009), its profiles Cao et al. (2019); ImageNet-LT and Places-LT, Liu
# et al. (2019); iNaturalist 2018, its challenge's page. Tiny-ImageNet-32 is Tiny-ImageNet at 32 ×
# 32, thinned to what the two profiles need.
KNOWN_IMAGES = (
    KnownImages(
        "CIFAR-10",
        10,
        50_000,
        10_000,
        5_000,
        5_000,
        side=32,
        profiles=(("exp", 12_406), ("step", 25_250)),
    ),
    KnownImages(
        "CIFAR-100",
        100,
        50_000,
        10_000,
        500,
        500,
        side=32,
        profiles=(("exp", 10_847), ("step", 25_250)),
    ),
    KnownImages(
        "Tiny-ImageNet-32",
        200,
        51_903,
        10_000,
        500,
        5,
        32,
        (("exp", 21_549), ("step", 50_500)),
        published=False,
    ),
    KnownImages("ImageNet-LT", 1_000, 115_846, 50_000, 1_280, 5),
    KnownImages("Places-LT", 365, 62_500, 36_500, 4_980, 5),
    KnownImages("iNaturalist 2018", 8_142, 437_513, 24_426, 1_000, 2),
)


OWN = "the counts known for this set"
"""For a set that has not been published in this form."""


def recognise_images(points: Points) -> KnownImages | None:
    """The known set with this many labels, of images of this size.

    >>> from headtail.data.points import Points
    >>> images = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
    >>> recognise_images(Points(images, Ragged.from_lists([]), 100)).name
    'CIFAR-100'
    """
    size = points.image_size if isinstance(points.features, Tensor) else None
    looked_for = (points.num_labels, None if size is None else size[1])
    known = (known for known in KNOWN_IMAGES if (known.num_labels, known.side) == looked_for)
    return next(known, None)


def compare_images(known: KnownImages, data: DataSet) -> str:
    """A sentence: the counts are the known ones, or what differs."""
    counts = torch.bincount(data.train.labels.values.long(), minlength=data.train.num_labels)
    pairs = {
        "training images": (len(data.train), known.num_train),
        "test images": (len(data.test), known.num_test),
        "of the most frequent label": (int(counts.max()), known.most),
        "of the rarest": (int(counts.min()), known.least),
    }
    wrong = [
        f"{here:,} {what} instead of {wanted:,}"
        for what, (here, wanted) in pairs.items()
        if here != wanted
    ]
    if wrong:
        counts = "its published counts" if known.published else OWN
        return f"These have the labels of {known.name}, but not {counts}: {', '.join(wrong)}."
    counts = "the published number of images and labels" if known.published else OWN
    return f"This is {known.name}, with {counts}."


def compare_profile(known: KnownImages, profile: str, imbalance: float, number: int) -> str | None:
    """A sentence about what a profile left, where that is known.

    >>> compare_profile(KNOWN_IMAGES[1], "exp", 100, 10847)
    'These are the 10,847 training images of CIFAR-100-LT exp, as published.'
    """
    wanted = dict(known.profiles).get(profile) if imbalance == 100 else None
    if wanted is None:
        return None
    name = f"{known.name}-LT {profile}"
    if number != wanted:
        published = " as published" if known.published else ""
        return f"{name} has {wanted:,} training images{published}, but here are {number:,}."
    source = "as published" if known.published else f"with {OWN}"
    return f"These are the {number:,} training images of {name}, {source}."
