"""Public data sets and their published counts, to check that the same data were read."""

from __future__ import annotations

from dataclasses import dataclass

from headtail.data.points import Points

SOURCE = "The Extreme Classification Repository, manikvarma.org/downloads/XC/XMLRepository.html"
"""The source of all of these."""


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
        propensity: A and B of the repository's propensity-scored figures.
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


def compare_counts(known: Known, train: Points, test: Points) -> str:
    """A sentence: the counts are the published ones, or what differs.

    >>> from headtail.data.points import Points
    >>> none = Points(torch.zeros(0, 500), Ragged.from_lists([]), 983)
    >>> compare_counts(recognise(500, 983), none, none)
    'This is not Delicious as published: 0 training points instead of 12,920, 0 test points...'
    """
    pairs = {
        "features": (train.num_features, known.num_features),
        "labels": (train.num_labels, known.num_labels),
        "training points": (len(train), known.num_train),
        "test points": (len(test), known.num_test),
    }
    wrong = [
        f"{here:,} {what} instead of {published:,}"
        for what, (here, published) in pairs.items()
        if here != published
    ]
    points = len(train) + len(test)
    labels = (train.num_pairs + test.num_pairs) / max(points, 1)
    # Published averages have two decimals, and some count both parts, others only one.
    if points and abs(labels / known.labels_per_point - 1) > 0.01:
        wrong.append(f"{labels:.2f} labels per point instead of {known.labels_per_point:.2f}")
    if wrong:
        return f"This is not {known.name} as published: {', '.join(wrong)}."
    return f"This is {known.name}, with the published number of points, features and labels."
