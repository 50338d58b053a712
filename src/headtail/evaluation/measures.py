"""Every metric of a model on a test set, by slice, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.core.targets import Ragged
from headtail.data.catalogue import recognise
from headtail.data.facts import label_counts
from headtail.data.points import DataSet
from headtail.encoders import Model
from headtail.errors import HeadtailError, PythonName, check_count
from headtail.evaluation.bootstrap import intervals
from headtail.evaluation.ranks import ranks_of_model
from headtail.evaluation.topk import top_labels
from headtail.metrics import DEEPEST, Ranked, Ratio, coverage, filtered_ratios, ratios
from headtail.metrics.ratios import depth_of


class Measure(NamedTuple):
    """One number: a metric over a slice of the labels.

    Attributes:
        metric: for example "recall@10".
        slice: "full", "head", "torso" or "tail".
        value: the number; nan where nothing in the test set decides it, as for an empty slice.
        low: lower end of its 95% bootstrap interval over points, or None.
        high: upper end, or None.
    """

    metric: str
    slice: str
    value: float
    low: float | None = None
    high: float | None = None


def measure_ranking(
    top: Int[Tensor, "n K"],
    labels: Ragged,
    train: Labels,
    slices: Slices,
    *,
    num_points: int,
    filtered: Ranked | None = None,
    propensity: tuple[float, float] = (0.55, 1.5),
    resamples: int = 1000,
    seed: int = 0,
) -> list[Measure]:
    """Every metric of `headtail.metrics.ratios` with its interval, and coverage@10; with filtered
    ranks, `headtail.metrics.filtered_ratios` too.

    Coverage has no interval: a resample holds 63% of the points and can only lose labels, so its
    quantiles would lie below the value. Intervals of label averages keep each label's weight (1
    over its test pairs) as it is in the test set. If they were averaged again in each resample,
    labels with a single pair would be missing from 37% of them, and the interval would drift to
    the head.

    Args:
        top: `[n, K]` the best labels of each point, best first; −1 where there is none, which
            matches nothing. Metrics of the first k are left out where K is less than k and L;
            the largest k is 50.
        labels: the labels of the same points; one listed twice at a point counts once.
        train: label counts of the training set.
        slices: head, torso and tail.
        num_points: N, the number of training points (`train.total` counts pairs).
        filtered: filtered ranks of the same points, where other right answers are known.
        propensity: A and B of the propensity model, see `headtail.metrics.ratios`.
        resamples: bootstrap resamples; 0 for no intervals.
        seed: of the resamples.

    >>> import torch
    >>> train = Labels.from_counts([300, 30, 3])
    >>> top = torch.tensor([[0, 1, 2], [0, 2, 1]])
    >>> labels = Ragged.from_lists([[0], [2]])
    >>> rows = measure_ranking(top, labels, train, train.slices(), num_points=333, resamples=0)
    >>> [(row.slice, row.value) for row in rows if row.metric == "recall@1"]
    [('full', 0.5), ('head', 1.0), ('torso', nan), ('tail', 0.0)]
    """
    if resamples:
        check_count("resamples", resamples)
    metrics = ratios(top, labels, train, slices, num_points=num_points, propensity=propensity)
    if filtered is not None:
        metrics = chain(metrics, filtered_ratios(filtered, slices))
    covered = coverage(top, slices, 10).items() if depth_of(top, train.num_labels) >= 10 else ()
    return [
        *_with_intervals(metrics, len(top), resamples, seed),
        *(Measure("coverage@10", name, value) for name, value in covered),
    ]


def _with_intervals(
    metrics: Iterable[Ratio], n: int, resamples: int, seed: int
) -> Iterator[Measure]:
    measured: list[Measure] = []

    def measure_each() -> Iterator[tuple[Tensor, Tensor]]:
        for ratio in metrics:
            measured.append(Measure(ratio.metric, ratio.slice, ratio.value))
            yield ratio.numerator, ratio.denominator

    if resamples:
        ends = intervals(measure_each(), n, resamples, seed).tolist()
    else:
        ends = [[math.nan, math.nan] for _ in measure_each()]
    for measure, (low, high) in zip(measured, ends, strict=True):
        yield measure._replace(low=_or_none(low), high=_or_none(high))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def measure_model(model: Model, data: DataSet, slices: Slices) -> list[Measure]:
    """Every metric of a model on the test points of a data set."""
    filtered = ranks_of_model(model, data.test)
    return measures_of(best_labels(model, data), data, slices, filtered)


def measures_of(
    top: Int[Tensor, "n K"],
    data: DataSet,
    slices: Slices,
    filtered: Ranked | None = None,
    resamples: int = 1000,
) -> list[Measure]:
    """Every metric of a ranking of the labels for the test points of a data set.

    Args:
        top: `[n, K]` the best labels of each test point, for example from `best_labels`.
        data: the data set; a well-known one brings its own propensity model.
        slices: head, torso and tail, for example from `headtail.data.slices.data_slices`.
        filtered: filtered ranks of the test points, where other right answers are known, for
            example from `headtail.evaluation.ranks.ranks_of_model`.
        resamples: bootstrap resamples; 0 for no intervals.
    """
    train = Labels.from_counts(label_counts(data))
    known = recognise(data.train.num_features, data.train.num_labels)
    propensity = (0.55, 1.5) if known is None else known.propensity
    measure = partial(
        measure_ranking,
        top,
        data.test.labels,
        train,
        num_points=len(data.train),
        filtered=filtered,
        propensity=propensity,
        resamples=resamples,
    )
    measures = measure(slices)
    cold = train.counts == 0
    if data.items is not None and bool(cold.any()):
        # Labels that only their features describe are a slice of their own.
        apart = measure(Slices(2 * cold.to(torch.int8), "cold: never in training"))
        measures += [row._replace(slice="cold") for row in apart if row.slice == "tail"]
    return measures


def best_labels(model: Model, data: DataSet) -> Int[Tensor, "n k"]:
    """As many labels of each test point as metrics look at."""
    return top_labels(model, data.test, min(DEEPEST, data.test.num_labels))


def check_measurable(data: DataSet) -> None:
    """Refuse data on which nothing can be measured."""
    if not data.test.num_pairs:
        raise HeadtailError(
            f"No test point of `{data.name}` has a label that training knows, so nothing can be "
            "measured. Name a test part with such labels; a trained model can predict labels for "
            "these points (",
            PythonName("headtail.evaluation.predictions.predict"),
            ").",
        )


def unmeasured_rows(data: DataSet) -> tuple[int, int]:
    """Rows of the test part without a label that training knows, and all its rows."""
    apart = 0 if data.unlabelled is None else len(data.unlabelled)
    unmeasured = int((data.test.labels.offsets.diff() == 0).sum()) + apart
    return unmeasured, len(data.test) + apart
