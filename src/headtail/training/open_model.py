"""A trained model opened together with data that fit it."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headtail.core.targets import Ragged
from headtail.data.answers import rows_to_answer
from headtail.data.bag import Bag
from headtail.data.histories import Histories
from headtail.data.known import Known
from headtail.data.load import DEFAULTS, load
from headtail.data.points import DataSet, Points, Progress
from headtail.data.reading import Reading, told_apart, what_changed
from headtail.data.text_features import Trained
from headtail.encoders import Model, SequenceEncoder
from headtail.errors import HeadtailError, Sentence
from headtail.training.config import SettledRun, data_of
from headtail.training.saved_model import load_model

Names = list[str] | list[int] | None


class OpenedModel(NamedTuple):
    """A trained model, its settings, and data that it can be asked about.

    Attributes:
        model: in evaluation mode.
        run: its settings.
        data: the data, with the label names of training.
        note: how the data differ from those of training, in a sentence; or None.
    """

    model: Model
    run: SettledRun
    data: DataSet
    note: str | None


def open_model(
    folder: str | Path,
    data: Any,
    *,
    reading: Reading = DEFAULTS,
    progress: Progress | None = None,
    device: str = "cpu",
    only_answers: bool = False,
) -> OpenedModel:
    """Load the trained model of a run's folder, and the data; refuse data that do not fit it.

    Args:
        folder: of a finished run.
        data: a data set, or what `headtail.load` reads; for a model that was trained on raw text,
            also a list of texts, or a file of texts alone, one per line.
        reading: how to read it.
        progress: called with what is being read, and the share that is done.
        device: "cpu" or "cuda".
        only_answers: the labels of the test part do not matter: where labels are named by their
            ids, it may have others, or none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that are never drawn: training warned
        model, run, facts = load_model(folder)
    typed = data if isinstance(data, str | Path) else getattr(data, "name", "data")
    if not isinstance(data, DataSet):
        trained = _trained(facts, len(model.head.weight))
        if isinstance(data, list):
            data = _texts(data, trained)
        else:
            data = load(data, reading, progress, trained=trained)
    trained_on = data_of(Path(folder) / "run.toml")
    _check_text(data, facts, folder)
    _check_order(data, model, folder)
    _check_columns(data, facts, folder)
    wanted = (facts["num_features"], len(model.head.weight))
    shape = (data.train.num_features, data.train.num_labels)
    names = facts.get("label_names", data.label_names)
    origin = Sentence()
    if trained_on:
        origin = Sentence(" (", told_apart(trained_on, data.read_as)[0], ")")
    if shape != wanted and not (only_answers and _fits_within(data, *wanted)):
        features = data.train.image_size is None
        raise HeadtailError(
            f"The model in `{folder}` has {_sizes(wanted, features)}, but `{typed}` has "
            f"{_sizes(shape, features)}. Pass the data it was trained on",
            origin,
            ", or data read the same way.",
        )
    if (other := _other_label(names, data.label_names)) is not None:
        raise _other_labels(typed, folder, other, origin)
    # New texts are read with the model's own terms, so that nothing differs.
    expected = facts.get("data") == data.digest or (only_answers and "text" in facts)
    note = None if expected else _difference(trained_on, data.read_as)
    if shape != wanted:
        data = _widened(data, *wanted)
    return OpenedModel(model.to(device), run, replace(data, label_names=names), note)


def _other_labels(
    typed: Any, folder: str | Path, other: tuple[Any, Any, Any], origin: Sentence
) -> HeadtailError:
    label, then, now = other
    return HeadtailError(
        f"`{typed}` has other labels than the model in `{folder}` was trained with: label "
        f"{label} is `{now}`, and was `{then}`. Pass the data it was trained on",
        origin,
        "; other points to ask it about can be their test part.",
    )


class OpenedRows(NamedTuple):
    """A trained model, and rows of a file to ask it about.

    Attributes:
        model: in evaluation mode.
        run: its settings.
        points: the rows, without labels.
        label_names: the label names of training, or None.
        notes: what a user should know, in sentences.
    """

    model: Model
    run: SettledRun
    points: Points
    label_names: Names
    notes: list[str]


def open_rows(
    folder: str | Path,
    path: str | Path,
    *,
    reading: Reading = DEFAULTS,
    progress: Progress | None = None,
    device: str = "cpu",
) -> OpenedRows | None:
    """Load the trained model of a run's folder, and every row of a file for it.

    Rows need no labels, and the data of training need not be there: features get the ids that they
    had in training, and what the model does not know is left out and counted. None if the file has
    to be read with the data of training: texts, some files of images, and whatever runs of an older
    headtail were trained on.

    Args:
        folder: of a finished run.
        path: a file, or a folder of images; a sequence in it is asked what comes next, a user what
            else, a head with a relation for its tail.
        reading: how to read it; what is left out is as in training.
        progress: called with what is being read, and the share that is done.
        device: "cpu" or "cuda".
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that are never drawn: training warned
        model, run, facts = load_model(folder)
    images = facts.get("features") == "images" and Path(path).is_dir()
    if "features" not in facts or "text" in facts or not (images or Path(path).is_file()):
        return None
    trained_with = data_of(Path(folder) / "run.toml")
    sizes = (facts["num_features"], len(model.head.weight))
    names = ("label_names", "users", "relations", "picture", "feature_names")
    known = Known(facts["features"], *sizes, *(facts.get(name) for name in names))
    _check_options(trained_with, folder)
    read = rows_to_answer(Path(path), known, _as_in_training(reading, trained_with), progress)
    if read is None:
        return None
    points, notes = read
    return OpenedRows(model.to(device), run, points, known.label_names, notes)


def _check_options(trained_with: dict[str, Any], folder: str | Path) -> None:
    """Refuse options of the wrong kind, which somebody else has written."""
    for name in trained_with.keys() & {"last", "user", "item", "time", "session", "root"}:
        value = trained_with[name]
        whole = type(value) is int and value > 0
        if not (whole if name == "last" else isinstance(value, str)):
            raise HeadtailError(
                f"`{Path(folder) / 'run.toml'}` is damaged: `{name}` under `[data]` is "
                f"{str(value)[:60]!r}. Correct it, or delete that line."
            )


def _as_in_training(reading: Reading, trained_with: dict[str, Any]) -> Reading:
    """How to read rows: as training did, except for options that are given."""
    names = ("last", "user", "item", "time", "session", "root")
    usual = {name: trained_with[name] for name in names if trained_with.get(name) is not None}
    given = {name for name in usual if getattr(reading, name) != getattr(DEFAULTS, name)}
    return replace(reading, **{name: usual[name] for name in usual.keys() - given})


def _trained(facts: dict[str, Any], num_labels: int) -> Trained | None:
    """What a model knows of the texts it was trained on; None if it was trained on others."""
    if "text" not in facts:
        return None
    names = facts.get("label_names") or list(range(num_labels))
    return Trained(facts["text"], names, facts.get("data", ""))


def _check_order(data: DataSet, model: Model, folder: str | Path) -> None:
    """Refuse points without an order for a model that reads it."""
    in_order = isinstance(data.train.features, Histories)
    if isinstance(model.encoder, SequenceEncoder) and not in_order:
        raise HeadtailError(
            f"The model in `{folder}` reads sequences in order, but `{data.name}` has none. Pass "
            "the data it was trained on, or other sequences."
        )


def _check_columns(data: DataSet, facts: dict[str, Any], folder: str | Path) -> None:
    """Refuse columns of numbers that have other names, or another order, than the model's."""
    then, now = facts.get("feature_names"), data.feature_names
    if then is None or now is None or then == now:
        return
    place = next((i for i, pair in enumerate(zip(then, now, strict=False)) if len({*pair}) > 1), 0)
    raise HeadtailError(
        f"The model in `{folder}` has the feature `{then[place]}` where `{data.name}` has "
        f"`{now[place]}`. Pass the same columns in the same order."
    )


def _check_text(data: DataSet, facts: dict[str, Any], folder: str | Path) -> None:
    """Refuse a data set of texts with other terms than the model's."""
    if "text" in facts and (data.text is None or data.text.digest() != facts["text"].digest()):
        raise HeadtailError(
            f"The features of `{data.name}` are not the terms that the model in `{folder}` was "
            "trained with. Pass the path of the texts, and they are read for this model."
        )


def _texts(texts: list[str], trained: Trained | None) -> DataSet:
    """Texts as points without labels."""
    if trained is None:
        raise HeadtailError(
            "The model was not trained on raw text, so a list of texts cannot be read for it. Pass "
            "a data set, or the path of one."
        )
    offsets = torch.zeros(len(texts) + 1, dtype=torch.int64)
    labels = Ragged(torch.empty(0, dtype=torch.int32), offsets)
    points = Points(trained.features.bag(texts), labels, len(trained.label_names))
    digest = trained.digest  # nothing about them differs from training that a user should know
    return DataSet("texts", points, points, digest=digest, text=trained.features)


def _sizes(shape: tuple[int, int], features: bool) -> str:
    """Numbers of features and labels; those of images are not worth a word."""
    labels = f"{shape[1]:,} labels"
    return f"{shape[0]:,} features and {labels}" if features else labels


def _other_label(then: Names, now: Names) -> tuple[int, str, str] | None:
    """The first label that has another name now, with both names.

    Labels that have no names are numbers, which may be ids for words: these are not compared.
    """
    words = any(names is not None and isinstance(names[0], str) for names in (then, now))
    if then == now or (words and None in (then, now)):
        return None
    pairs = zip(
        *(map(str, itertools.count() if names is None else names) for names in (then, now)),
        strict=False,
    )
    return next(((label, *pair) for label, pair in enumerate(pairs) if pair[0] != pair[1]), None)


def _fits_within(data: DataSet, num_features: int, num_labels: int) -> bool:
    """Whether a model of this shape knows all features of the data, and all labels of its training
    part, by their ids.
    """
    if data.label_names is not None or data.unlabelled is not None or data.test.users is not None:
        return False
    train = data.train
    narrower = isinstance(train.features, Bag | Histories) and train.num_features < num_features
    known_features = narrower or train.num_features == num_features
    return known_features and int(train.labels.values.max()) < num_labels


def _widened(data: DataSet, num_features: int, num_labels: int) -> DataSet:
    """The same points, among more features and labels."""

    def widen(points: Points) -> Points:
        features = points.features
        if isinstance(features, Bag | Histories):
            features = replace(features, num_columns=num_features)
        return replace(points, features=features, num_labels=num_labels)

    whole = None if data.whole is None else widen(data.whole)
    return replace(data, train=widen(data.train), test=widen(data.test), whole=whole)


def _difference(trained_on: dict[str, Any], here: dict[str, Any]) -> str:
    """How the data differ from those of training, by the options they were read with."""
    start = "These are not the data that the model was trained on"
    if not trained_on:
        return f"{start}, or they are read in another way."
    then, now = told_apart(trained_on, here)
    if then == now:
        return f"{start}: {what_changed(trained_on, here)}."
    return Sentence(f"{start}: those were ", then, ", these are ", now, ".")
