"""One door: folders, files and generated data, each with the right reader."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headtail import HeadtailError
from headtail.cli.options import with_options
from headtail.cli.train import Train
from headtail.data.load import load
from headtail.data.readers.table import READERS
from headtail.data.reading import Format, Reading

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "shop"
    path.mkdir()
    return path


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


def npz(path, number=10):
    np.savez(path, features=np.ones((number, 3), np.float32), labels=np.arange(number) % 4)


ITEMS = [[1, 2, 3, 4, 1], [4, 3, 2, 1]]
PAIRS = [(user, item) for user in range(1, 7) for item in range(5, 10) if (user, item) != (1, 9)]
LONG = {
    "user_id": [user for user, _ in PAIRS],
    "item_id": [item for _, item in PAIRS],
    "time": range(29),
}
TEXT = "4 5 3\n0,2 1:0.5\n1 0:2\n2 3:1\n0 4:1\n"


@pytest.mark.parametrize(
    ("train", "test", "note"),
    [
        (
            {"session_id": [1, 2], "items": ITEMS},
            {"items": ITEMS, "target": [1, 2]},
            "Read as sequences: each item is predicted from those before it.",
        ),
        (
            {"user_id": [1, 2], "items": ITEMS},
            {"user_id": [1, 2], "items": ITEMS, "target": [1, 2]},
            "Read as sequences",
        ),
        (
            {"session_id": [1, 2], "items": ITEMS},
            {"session_id": [1, 2], "items": ITEMS},
            "Read as sequences: each item is predicted from those before it.",
        ),
        (
            {"user_id": [1, 2], "items": ITEMS},
            None,
            "Read as sequences: each item is predicted from those before it, with the",
        ),
        (
            {"user_id": [1, 2], "items": [[1, 2], [3]]},
            {"user_id": [1, 2], "items": [[3], [1]]},
            "Read as interactions",
        ),
        (LONG, None, "Read as sequences: the items of each user in the order of time"),
        (LONG, {"user_id": [1], "items": [[9]]}, "Read as interactions"),
    ],
)
def test_parquet_is_recognised_by_its_columns(folder, train, test, note):
    parquet(folder / "train.parquet", **train)
    if test:
        parquet(folder / "test.parquet", **test)
    data = load(folder)
    assert data.notes[0].startswith(note)
    assert data.name == "shop"


def test_a_folder_is_searched_for_whatever_is_there(folder):
    (folder / "README.txt").write_text("Not points.")
    (folder / "shop_train.txt").write_text(TEXT)
    (folder / "shop_test.txt").write_text("1 5 3\n2 3:1\n")
    data = load(folder)
    assert (len(data.train), len(data.test)) == (4, 1)
    assert data.notes[0] == "Read as text: labels, then features with their values."
    npz(folder / "train.npz")
    npz(folder / "test.npz", 4)
    assert len(load(str(folder)).test) == 4
    parquet(folder / "Sequences.parquet", items=ITEMS)
    assert load(folder).notes[0].startswith("Read as sequences")
    for name, train in (("xc", 4), ("svmlight", 4), ("dense", 10)):
        assert len(load(folder, Reading(format=name)).train) == train


def test_a_file_alone_holds_points_out(folder):
    (folder / "all.svm").write_text("1 1:2\n0 2:1\n" * 10)
    data = load(folder / "all.svm", Reading(holdout=0.25))
    assert (data.name, len(data.train), len(data.test)) == ("all", 15, 5)
    assert "25% of the points are held out" in " ".join(data.notes)
    assert load(folder / "all.svm").digest != data.digest
    npz(folder / "all.npz")
    assert len(load(folder / "all.npz").test) == 2
    parquet(folder / "a.parquet", **LONG)
    assert load(folder / "a.parquet", Reading(holdout=0.5)).test.num_pairs == 12


def test_reading_says_how(folder):
    for name in ("train", "test", "other"):
        (folder / f"{name}.txt").write_text(TEXT if name != "other" else "2 5 3\n1 1:1\n0 2:1\n")
    assert len(load(folder / "train.txt", Reading(test=folder / "other.txt")).test) == 2
    (folder / "train.txt").write_text(TEXT.replace("2 3:1", "2 3:1 x"))
    with pytest.raises(HeadtailError, match="line 4"):
        load(folder / "train.txt", Reading(test=folder / "other.txt"))
    assert (
        len(
            load(
                folder / "train.txt", Reading(test=folder / "other.txt", skip_bad_lines=True)
            ).train
        )
        == 3
    )
    (folder / "points").write_text(TEXT)
    assert len(load(folder / "points", Reading(test=folder / "other.txt", format="xc")).train) == 4
    parquet(folder / "a.parquet", user_id=[1, 2], items=ITEMS)
    # prefixes [1], [1, 2] and [4]
    assert len(load(folder / "a.parquet", Reading(last=1)).train.features.bag().columns) == 3
    assert (
        load(folder / "a.parquet", Reading(format="interactions"))
        .notes[0]
        .startswith("Read as interactions")
    )


def test_split_files_are_found_and_their_column_chosen(folder):
    (folder / "a_data.txt").write_text(TEXT)
    (folder / "a_trSplit.txt").write_text("1 4\n2 2\n3 1\n")
    (folder / "a_tstSplit.txt").write_text("4 3\n")
    assert load(folder).test.labels.values.tolist() == [0]
    assert load(folder, Reading(split_column=1)).test.labels.values.tolist() == [2]


def test_known_data_are_checked_against_the_published_counts(folder):
    (folder / "train.txt").write_text("2 500 983\n0 1:1\n1 2:1\n")
    (folder / "test.txt").write_text("1 500 983\n0 1:1\n")
    assert "not Delicious as published" in load(folder).notes[-1]


def test_generated_data_come_through_the_same_door(tmp_path, monkeypatch):
    data = load("synthetic:points=200,test=50,labels=30,features=100")
    assert (len(data.train), data.train.num_labels) == (200, 30)
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "synthetic.npz")
    assert load("synthetic.npz").train.num_labels == 4, "a file that is there goes first"


def test_what_cannot_be_read_is_reported(folder):
    parquet(folder / "train.parquet", photo=[b"x"], label=[1])
    for data, reading, sentence in [
        (folder.with_name("shpo"), Reading(), r"shpo` does not exist. Did you mean `shop`\?"),
        (folder / "qqqqqq" / "x", Reading(), r"does not exist. Name a folder or a file"),
        (
            folder,
            Reading(),
            r"train.parquet` has the columns `photo`, `label`, and it is",
        ),
        (folder, Reading(format="sequences"), r"no list column `items`, only `photo`, `label`"),
        (
            folder,
            Reading(format="dense"),
            r"and none of them is for features. Name it with",
        ),
        (folder, Reading(format="xc"), r"holds no text file"),
        (
            folder / "train.parquet",
            Reading(format="xc"),
            r"the ending .parquet does not fit the format xc",
        ),
        (folder, Reading(test=folder / "tets.parquet"), r"tets.parquet` does not exist"),
        (folder, Reading(holdout=1), "`holdout` must be between 0 and 1, both excluded, but got 1"),
    ]:
        with pytest.raises(HeadtailError, match=sentence):
            load(data, reading)


def test_endings_and_empty_folders_are_reported(folder):
    with pytest.raises(HeadtailError, match=r"shop` holds nothing to read. Expected is a table"):
        load(folder)
    (folder / "points.csv").write_text("1,2,3")
    with pytest.raises(
        HeadtailError,
        match=r"points.csv` has 3 columns without names, which fit more than one",
    ):
        load(folder / "points.csv")
    npz(folder / "a.npz")
    with pytest.raises(HeadtailError, match=r"points.csv` is not of the same format as"):
        load(folder / "a.npz", Reading(test=folder / "points.csv"))
    (folder / "points.csv").unlink()
    (folder / "points.txt").write_text(TEXT)
    with pytest.raises(
        HeadtailError, match=r"points.txt` is not of the same format as .*a.npz` \(dense\)"
    ):
        load(folder / "a.npz", Reading(test=folder / "points.txt"))
    npz(folder / "b.npz")
    with pytest.raises(
        HeadtailError, match=r"holds a.npz, b.npz, and none of them is called `train`"
    ):
        load(folder)


def test_the_door_opens_without_the_heavy_libraries():
    heavy = ("pyarrow", "numba", "scipy", "sklearn", "PIL")
    code = f"import sys, headtail.data.load; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "train", "test"), [("beauty", 233_284, 36_208), ("delicious", 12_920, 3_185)]
)
def test_real_folders_open(name, train, test):
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in {DATA}; set HEADTAIL_DATA to the folder that holds it")
    data = load(DATA / name)
    assert (data.name, len(data.train), len(data.test)) == (name, train, test)


def test_every_format_that_can_be_requested_has_a_reader_and_every_reader_a_format():
    assert {reader.format for reader in READERS} | {"auto"} == set(get_args(Format))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.format}, {reader.module}")
def test_a_row_of_the_table_names_a_module_that_reads_and_options_that_exist(reader):
    module = import_module(f"headtail.data.readers.{reader.module}")
    read = module.read_tables if reader.kind.name == "table" else module.read_files
    assert len(signature(read).parameters) == 3
    assert set(reader.options) <= {field.name for field in fields(Reading)}


def test_images_without_labels_are_for_predict(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    with pytest.raises(HeadtailError) as error:
        load(tmp_path)
    assert str(error.value) == (
        f"`{tmp_path}` has no labels, so there is nothing to learn. A trained model can predict "
        "labels of its images as they are (`headtail.training.open_model.open_rows`)."
    )
    assert "(`headtail predict`)" in with_options(error.value, Train)
