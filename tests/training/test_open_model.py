"""A trained model opened from Python: with data that fit it, and no others."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measure_model, measures_of
from headtail.evaluation.predictions import points_of, predict, write_predictions
from headtail.evaluation.topk import top_labels
from headtail.training.config import Run, to_toml
from headtail.training.notes import notes_on
from headtail.training.open_model import open_model
from headtail.training.recipes import with_defaults
from headtail.training.trainer import Trainer

DATA = "synthetic:points=200,test=50,features=80,labels=20"
RUN = Run(scheme="softmax", dim=8, epochs=1, batch=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Trainer(RUN, load(DATA), folder).fit()
    return folder


@pytest.mark.parametrize("loaded", [False, True])
def test_a_model_is_opened_with_its_data_measured_and_asked(folder, tmp_path, loaded):
    model, run, data, note = open_model(folder, load(DATA) if loaded else DATA)
    assert run == with_defaults(RUN, data)
    assert note is None
    assert not model.training
    slices = data_slices(data)
    top = top_labels(model, data.test, 20)
    assert measure_model(model, data, slices) == measures_of(top, data, slices)
    predictions = predict(model, points_of(data), k=3)
    assert torch.equal(predictions.labels, top[:, :3])
    write_predictions(tmp_path / "top.csv", predictions, data.label_names)
    rows = list(csv.DictReader((tmp_path / "top.csv").read_text().splitlines()))
    assert [int(row["label"]) for row in rows] == predictions.labels.flatten().tolist()


def test_data_of_another_shape_are_refused_without_the_words_of_the_command_line(folder):
    other = load(DATA.replace("labels=20", "labels=21"))
    with pytest.raises(HeadtailError, match="has 80 features and 20 labels, but") as raised:
        open_model(folder, other)
    assert "--" not in str(raised.value)


def test_other_data_of_the_same_shape_are_noted(folder):
    opened = open_model(folder, DATA.replace("points=200", "points=210"))
    assert opened.note is not None
    assert opened.note.startswith("These are not the data that the model was trained on")


def test_a_change_of_the_files_is_told_from_a_change_of_how_they_are_read(tmp_path):
    points, folder = tmp_path / "points.txt", tmp_path / "run"
    lines = [f"{i % 5} {i % 7}:1 {7 + i % 11}:1" for i in range(40)]
    points.write_text("\n".join(lines))
    data = load(points)
    Trainer(RUN, data, folder).fit()
    (folder / "run.toml").write_text(to_toml(asdict(RUN), data.read_as))
    start = "These are not the data that the model was trained on: "
    read_otherwise = replace(data, digest="other")
    assert open_model(folder, read_otherwise).note == (
        f"{start}this version of headtail reads the same files in another way."
    )
    points.write_text("\n".join(lines[::-1]))
    assert open_model(folder, points).note == f"{start}their content has changed."
    settings = (folder / "run.toml").read_text().splitlines()
    without = [line for line in settings if not line.startswith("content")]
    (folder / "run.toml").write_text("\n".join(without))
    assert open_model(folder, points).note == (
        f"{start}their content has changed, or this version of headtail reads them in another way."
    )


def test_more_labels_than_there_are_and_files_of_other_kinds_are_refused(folder, tmp_path):
    model, _, data, _ = open_model(folder, DATA)
    with pytest.raises(HeadtailError, match="`k=21` is more than the 20 labels"):
        predict(model, data.test, k=21)
    assert predict(model, data.test).labels.shape == (50, 10)
    with pytest.raises(HeadtailError, match=r"must end in .parquet or .csv"):
        write_predictions(tmp_path / "top.txt", predict(model, data.test))


def test_points_are_those_of_the_part_that_is_asked_for():
    data = load(DATA)
    assert points_of(data) is data.test
    assert points_of(data, "train") is data.train
    with pytest.raises(HeadtailError, match="`part` must be one of"):
        points_of(data, "tests")  # pyright: ignore


def test_notes_name_no_options_of_the_command_line():
    notes = notes_on(load(DATA.replace("points=200", "points=60")), RUN, [RUN.scheme], "count")
    assert any("held out to choose the epoch; with `validation=0`" in note for note in notes)
    assert any("the head is empty; `slices='mass'`" in note for note in notes)
    assert not any("--" in note for note in notes)
