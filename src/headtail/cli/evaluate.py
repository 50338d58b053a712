"""`headtail evaluate` and `headtail predict`: what a trained model answers."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from torch import Tensor

from headtail.cli.device import Device, choose
from headtail.cli.progress import reading
from headtail.cli.tables import measures_table
from headtail.comparison.compare import (
    SliceRule,
    best_labels,
    check_measurable,
    data_slices,
    measures_of,
    row_of,
)
from headtail.comparison.results import to_csv, write_text
from headtail.data.facts import task_of
from headtail.data.load import Reading, load, told_apart
from headtail.data.points import Bag, DataSet, Points
from headtail.encoders import Model
from headtail.errors import HeadtailError, check_count
from headtail.evaluation.predictions import write_predictions
from headtail.evaluation.topk import blocks, top_labels
from headtail.training.config import Run, data_of
from headtail.training.saved_model import load_model

Names = list[str] | list[int] | None
SCORES_AT_ONCE = 2**24
"""Scores of all labels that are held at a time, to look those of the best labels up."""


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained model over all labels, by slice, on the test points of some data that have
    a label training knows.
    """

    model: Annotated[Path, tyro.conf.Positional]
    """Folder of a finished run: made by headtail train, or one of the cells of headtail compare."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The data, as for headtail train."""
    slices: SliceRule = "auto"
    """Head, torso and tail: a third of the examples each (mass), or at least 100 and fewer than 20
    examples a label (count); auto: count for pictures and vectors with one label each, otherwise
    mass.
    """
    out: Path | None = None
    """CSV file for the numbers."""
    device: Device = "auto"
    """Where to compute."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Measure and print."""
        model, run, data = open_model(self.model, self.data, self.reading, self.device)
        check_measurable(data)
        talk = Console(stderr=True, highlight=False)
        out, all_of_them = _not_measured(data)
        if out:
            talk.print(
                f"{out:,} of {all_of_them:,} test points have no label that training knows: they "
                "are not measured."
            )
        with talk.status(f"scoring {len(data.test):,} points"):
            found = measures_of(best_labels(model, data), data, data_slices(data, self.slices))
        rows = [row_of(run, data, "test", one, 0, 0, self.model.name) for one in found]
        if self.out is not None:
            write_text(self.out, to_csv(rows))
        console = Console(highlight=False)
        console.print(
            measures_table(f"{run.scheme} on {data.name}", rows, console.width, task_of(data))
        )
        return 0


@dataclass(frozen=True)
class Predict:
    """Write the best labels of every row of the test part, or of a file without one, to a Parquet
    or CSV file.

    Rows of a test part (--test) need no label, or may have a new one.

    Its columns: point (the row of the input, from 0), user where the data name one (path, of
        picture files), rank, label, score.
    """

    model: Annotated[Path, tyro.conf.Positional]
    """Folder of a finished run."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The data, as for headtail train."""
    out: Path
    """File to write: .parquet or .csv."""
    k: int | None = None
    """Labels a point; by default 10, or all where there are fewer."""
    points: Literal["auto", "test", "train"] = "auto"
    """Which points: all rows of the test part, also of one that was held out (test), or those
    trained on (train); auto: of the test part where the data have one, else all rows there are.
    """
    device: Device = "auto"
    """Where to compute."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Predict and write."""
        if self.k is not None:
            check_count("--k", self.k)
        if self.out.suffix not in (".parquet", ".csv"):
            raise HeadtailError(
                f"`--out {self.out}` must end in .parquet or .csv: write for example "
                f"`{self.out.stem}.parquet`."
            )
        model, _, data = open_model(self.model, self.data, self.reading, self.device, answers=True)
        wanted = data.asked if data.whole is None else data.whole
        points = {"auto": wanted, "test": data.asked, "train": data.train}[self.points]
        k = min(10, points.num_labels) if self.k is None else self.k
        if k > points.num_labels:
            raise HeadtailError(f"`--k {k}` is more than the {points.num_labels} labels there are.")
        with Console(stderr=True).status(f"scoring {len(points):,} points"):
            top = top_labels(model, points, k)
            write_predictions(self.out, points, top, _scores(model, points, top), data.label_names)
        Console(highlight=False).print(
            f"{len(points):,} points × {k} labels: {self.out}", soft_wrap=True, markup=False
        )
        return 0


def open_model(
    folder: Path, data: str, how: Reading, device: Device, answers: bool = False
) -> tuple[Model, Run, DataSet]:
    """The trained model of a run's folder, its settings, and the data, where the two fit.

    To give answers, labels of the test part do not matter: where ids are their own names, it may
        have others, or none.
    """
    where = choose(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that are never drawn: that was told in training
        model, run, facts = load_model(folder)
    with reading(Console(stderr=True)) as progress:
        found = load(data, how, progress)
    trained = data_of(folder / "run.toml")
    shapes = (
        (facts["num_features"], len(model.head.weight)),
        (found.train.num_features, found.train.num_labels),
    )
    on = f" ({told_apart(trained, found.read_as)[0]})" if trained else ""
    if shapes[0] != shapes[1] and not (answers and _within(found, *shapes[0])):
        kinds = [("features", 0)] * (found.train.picture is None) + [("labels", 1)]
        then, now = (" and ".join(f"{shape[i]:,} {what}" for what, i in kinds) for shape in shapes)
        told = f"The model in `{folder}` has {then}, but `{data}` has {now}"
        raise HeadtailError(
            f"{told}. Pass the data it was trained on{on}, or data read the same way."
        )
    names = facts.get("label_names", found.label_names)
    if (other := _other_label(names, found.label_names)) is not None:
        label, then, now = other
        raise HeadtailError(
            f"`{data}` has other labels than the model in `{folder}` was trained with: label "
            f"{label} is `{now}`, and was `{then}`. "
            f"Pass the data it was trained on{on}; `--test` names others to ask it about."
        )
    if facts["data"] != found.digest:
        Console(stderr=True, highlight=False).print(
            _difference(trained, found.read_as), soft_wrap=True, markup=False
        )
    if shapes[0] != shapes[1]:
        parts = {
            name: part
            for name in ("train", "test", "whole")
            if (part := getattr(found, name)) is not None
        }
        found = replace(found, **{name: _as_wide(part, *shapes[0]) for name, part in parts.items()})
    return model.to(where), run, replace(found, label_names=names)


def _other_label(then: Names, now: Names) -> tuple[int, str, str] | None:
    """The first label that has another name now, with both names. Ids without names are numbers,
    but may stand for words.
    """
    words = any(names is not None and isinstance(names[0], str) for names in (then, now))
    if then == now or (words and None in (then, now)):
        return None
    pairs = zip(
        *(map(str, itertools.count() if names is None else names) for names in (then, now)),
        strict=False,
    )
    return next(((label, *pair) for label, pair in enumerate(pairs) if pair[0] != pair[1]), None)


def _not_measured(data: DataSet) -> tuple[int, int]:
    """Rows of the test part without a label that training knows, and all its rows."""
    apart = 0 if data.unlabelled is None else len(data.unlabelled)
    return int((data.test.labels.offsets.diff() == 0).sum()) + apart, len(data.test) + apart


def _within(data: DataSet, num_features: int, num_labels: int) -> bool:
    """Whether a model of this shape knows all features of the data, and all labels of its training
    part, by their ids.
    """
    if data.label_names is not None or data.unlabelled is not None or data.test.users is not None:
        return False
    narrower = isinstance(data.train.features, Bag) and data.train.num_features < num_features
    return (narrower or data.train.num_features == num_features) and int(
        data.train.labels.values.max()
    ) < num_labels


def _as_wide(points: Points, num_features: int, num_labels: int) -> Points:
    """The points as some of more features and labels."""
    features = points.features
    features = (
        replace(features, num_columns=num_features) if isinstance(features, Bag) else features
    )
    return replace(points, features=features, num_labels=num_labels)


def _difference(trained: dict[str, Any], here: dict[str, Any]) -> str:
    """How the data that a model meets differ from those it was trained on, by the options they were
    read with.
    """
    told = "These are not the data that the model was trained on"
    if not trained:
        return f"{told}, or they are read in another way."
    then, now = told_apart(trained, here)
    return (
        f"{told}: those were {then}, these are {now}."
        if then != now
        else f"{told}: their content has changed."
    )


@torch.no_grad()
def _scores(model: Model, points: Points, top: Tensor) -> Tensor:
    """`[n, k]` the logits of the labels that were found, without any post-hoc adjustment."""
    found = []
    for ids, features in blocks(
        points, model.head.weight.device, max(1, SCORES_AT_ONCE // points.num_labels)
    ):
        logits = model.head.logits(model.encode(features)).cpu()
        found.append(logits.gather(1, top[ids].clamp(min=0)))
    return torch.cat(found) if found else torch.zeros(0, top.shape[1])
