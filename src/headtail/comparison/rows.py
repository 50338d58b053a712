"""What was measured, as rows of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from headtail.comparison.results import DIAL, POPULAR, ClassError, Row
from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.data.facts import label_counts
from headtail.data.points import DataSet
from headtail.evaluation.dial import DialMeasure
from headtail.evaluation.measures import Measure, measures_of
from headtail.evaluation.ranks import ranks_of_most_popular
from headtail.metrics import DEEPEST, label_errors, most_popular
from headtail.schemes import parse
from headtail.training.config import SettledRun
from headtail.training.trainer import Trained


def rows_of(
    run: SettledRun, data: DataSet, trained: Trained, measures: Iterable[Measure], name: str
) -> list[Row]:
    """A run's learning curve, and what was measured on the test points.

    Args:
        run: its settings.
        data: the data set.
        trained: what training returned.
        measures: of its model on the test points.
        name: of its folder.
    """
    state = trained.state
    steps = trained.steps_per_epoch
    rows = []
    for epoch, metric, value in state.curve:
        split = "train" if metric == "loss" else "validation"
        rows.append(row_of(run, data, split, Measure(metric, "full", value), epoch, steps, name))
    best = state.best_epoch
    return rows + [row_of(run, data, "test", each, best, steps, name) for each in measures]


def dial_rows(test: Row, dial: Iterable[DialMeasure]) -> list[Row]:
    """What the dial measured, as rows beside this row of the test points."""
    return [replace(test, split=f"{DIAL}({tau:g})", **measure._asdict()) for tau, measure in dial]


def row_of(
    run: SettledRun,
    data: DataSet,
    split: str,
    measure: Measure,
    epoch: int = 0,
    steps: int = 0,
    name: str = "",
) -> Row:
    """One measure of a run.

    Args:
        run: its settings.
        data: the data set.
        split: "train", "validation" or "test".
        measure: the number.
        epoch: epochs trained.
        steps: batches in an epoch.
        name: of the run's folder.
    """
    return Row(
        run=name,
        dataset=data.name,
        split=split,
        loss=parse(run.scheme).loss,
        scheme=run.scheme,
        m=negatives_of(run),
        seed=run.seed,
        epoch=epoch,
        step=epoch * steps,
        **measure._asdict(),
    )


def baseline_rows(data: DataSet, slices: Slices) -> list[Row]:
    """What recommending the most frequent labels for every point reaches."""
    train = Labels.from_counts(label_counts(data))
    top = most_popular(train, len(data.test), min(DEEPEST, train.num_labels), data.test.seen)
    return [
        Row("", data.name, "test", "", POPULAR, None, 0, 0, 0, **measure._asdict())
        for measure in measures_of(top, data, slices, ranks_of_most_popular(train, data.test))
    ]


def explain_rows(explained: dict[str, dict[str, Any]], data: DataSet) -> list[Row]:
    """What is known of each scheme before training, given what `explain_schemes` returned."""
    rows = []
    for name, about in explained.items():
        where = ("", data.name, "explain", parse(name).loss, name, about["m"], 0, 0, 0, "full")
        rows += [
            Row(*where, metric, about[metric])
            for metric in ("lean", "noise_untrained")
            if about.get(metric) is not None
        ]
    return rows


def class_errors(run: SettledRun, data: DataSet, top: Int[Tensor, "n k"]) -> list[ClassError]:
    """The error of each label, given the best labels of the test points."""
    counts = label_counts(data).tolist()
    names = map(str, data.label_names or [""] * data.train.num_labels)
    errors = label_errors(top, data.test.labels, data.train.num_labels)
    of_label = zip(names, counts, errors.points.tolist(), errors.error.tolist(), strict=True)
    return [
        ClassError(data.name, run.scheme, negatives_of(run), run.seed, label, *values)
        for label, values in enumerate(of_label)
    ]


def negatives_of(run: SettledRun) -> float | None:
    """m of a run's batches; None for an all-label loss."""
    return parse(run.scheme).negatives(run.negatives, run.batch)
