"""Data sets with known counts, most of them published, to tell whether what was read is what others
measure on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headtail.data.points import DataSet, Points

SOURCE = "The Extreme Classification Repository, manikvarma.org/downloads/XC/XMLRepository.html"
"""Where all of these can be had."""


@dataclass(frozen=True)
class Known:
    """A public data set.

    Attributes:
        name: as the literature writes it.
        num_features: D.
        num_labels: L.
        num_train: training points.
        num_test: test points.
        labels_per_point: average, published.
        features_per_point: average; an approximation, not published with the counts.
        zipf: exponent of a power law that resembles the label counts; 1.1 is fitted to Delicious,
            the others are round guesses.
        propensity: A and B with which the repository's propensity-scored figures are computed.
    """

    name: str
    num_features: int
    num_labels: int
    num_train: int
    num_test: int
    labels_per_point: float
    features_per_point: float
    zipf: float
    propensity: tuple[float, float] = (0.55, 1.5)


CATALOGUE = (
    Known(
        "Delicious",
        500,
        983,
        12_920,
        3_185,
        labels_per_point=19.03,
        features_per_point=18.3,
        zipf=1.1,
    ),
    Known(
        "AmazonCat-13K",
        203_882,
        13_330,
        1_186_239,
        306_782,
        labels_per_point=5.04,
        features_per_point=71.2,
        zipf=1.0,
    ),
    Known(
        "WikiLSHTC-325K",
        1_617_899,
        325_056,
        1_778_351,
        587_084,
        3.19,
        features_per_point=42.1,
        zipf=1.0,
        propensity=(0.5, 0.4),
    ),
)


@dataclass(frozen=True)
class KnownPictures:
    """A public set of pictures with one label each.

    Attributes:
        name: as the literature writes it.
        num_labels: L.
        num_train: training pictures.
        num_test: test pictures; of sets whose test labels are secret, the validation pictures.
        most: training pictures of the most frequent label.
        least: of the rarest.
        side: pixels of a side where all pictures have one size, else None.
        profiles: training pictures that a profile at imbalance 100 leaves.
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
PICTURES = (
    KnownPictures(
        "CIFAR-10",
        10,
        50_000,
        10_000,
        5_000,
        5_000,
        side=32,
        profiles=(("exp", 12_406), ("step", 25_250)),
    ),
    KnownPictures(
        "CIFAR-100",
        100,
        50_000,
        10_000,
        500,
        500,
        side=32,
        profiles=(("exp", 10_847), ("step", 25_250)),
    ),
    KnownPictures(
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
    KnownPictures("ImageNet-LT", 1_000, 115_846, 50_000, 1_280, 5),
    KnownPictures("Places-LT", 365, 62_500, 36_500, 4_980, 5),
    KnownPictures("iNaturalist 2018", 8_142, 437_513, 24_426, 1_000, 2),
)


OWN = "the counts known for this set"
"""Of one that nobody has published in this form."""


def recognise(num_features: int, num_labels: int) -> Known | None:
    """The known data set of this many features and labels.

    >>> recognise(500, 983).name
    'Delicious'
    """
    return next(
        (
            known
            for known in CATALOGUE
            if (known.num_features, known.num_labels) == (num_features, num_labels)
        ),
        None,
    )


def check(known: Known, train: Points, test: Points) -> str:
    """A sentence: the counts are the published ones, or what differs.

    >>> from headtail.data.points import Points
    >>> none = Points(torch.zeros(0, 500), Ragged.from_lists([]), 983)
    >>> check(recognise(500, 983), none, none)
    'This is not Delicious as published: 0 training points instead of 12,920, 0 test points instead of 3,185.'
    """
    pairs = {
        "features": (train.num_features, known.num_features),
        "labels": (train.num_labels, known.num_labels),
        "training points": (len(train), known.num_train),
        "test points": (len(test), known.num_test),
    }
    wrong = [
        f"{found:,} {what} instead of {published:,}"
        for what, (found, published) in pairs.items()
        if found != published
    ]
    points = len(train) + len(test)
    labels = (train.num_pairs + test.num_pairs) / max(points, 1)
    # Published averages have two decimals and differ a little by whether they count both parts or
    # one.
    if points and abs(labels / known.labels_per_point - 1) > 0.01:
        wrong.append(f"{labels:.2f} labels a point instead of {known.labels_per_point:.2f}")
    if wrong:
        return f"This is not {known.name} as published: {', '.join(wrong)}."
    return f"This is {known.name}, with the published number of points, features and labels."


def recognise_pictures(points: Points) -> KnownPictures | None:
    """The known set with this many labels, of pictures of this size.

    >>> from headtail.data.points import Points
    >>> recognise_pictures(Points(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), Ragged.from_lists([]), 100)).name
    'CIFAR-100'
    """
    side = (
        points.features.shape[-1]
        if isinstance(points.features, Tensor) and points.features.dim() == 4
        else None
    )
    return next(
        (
            known
            for known in PICTURES
            if (known.num_labels, known.side) == (points.num_labels, side)
        ),
        None,
    )


def check_pictures(known: KnownPictures, data: DataSet) -> str:
    """A sentence: the counts are the known ones, or what differs."""
    counts = torch.bincount(data.train.labels.values.long(), minlength=data.train.num_labels)
    pairs = {
        "training pictures": (len(data.train), known.num_train),
        "test pictures": (len(data.test), known.num_test),
        "of the most frequent label": (int(counts.max()), known.most),
        "of the rarest": (int(counts.min()), known.least),
    }
    wrong = [
        f"{found:,} {what} instead of {wanted:,}"
        for what, (found, wanted) in pairs.items()
        if found != wanted
    ]
    if wrong:
        counts = "its published counts" if known.published else OWN
        return f"These have the labels of {known.name}, but not {counts}: {', '.join(wrong)}."
    return (
        f"This is {known.name}, with "
        f"{'the published number of pictures and labels' if known.published else OWN}."
    )


def check_profile(known: KnownPictures, profile: str, imbalance: float, found: int) -> str | None:
    """A sentence about what a profile left, where that is known.

    >>> check_profile(PICTURES[1], "exp", 100, 10847)
    'These are the 10,847 training pictures of CIFAR-100-LT exp, as published.'
    """
    wanted = dict(known.profiles).get(profile) if imbalance == 100 else None
    if wanted is None:
        return None
    if found != wanted:
        said = " as published" if known.published else ""
        return (
            f"{known.name}-LT {profile} has {wanted:,} training pictures{said}, but here are "
            f"{found:,}."
        )
    said = "as published" if known.published else f"with {OWN}"
    return f"These are the {found:,} training pictures of {known.name}-LT {profile}, {said}."
