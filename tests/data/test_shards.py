"""A part of the data in several Parquet files reads as if it were one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.reading import Reading
from tests.data.test_parquet_images import pixels, write

ITEMS = [[1, 2, 3, 2], [2, 3, 1, 3, 3], [3, 1], [1, 3, 2, 1]]
CASES = {
    "sequences": {"items": ITEMS},
    "interactions": {"user_id": [1, 1, 2, 2, 3, 3, 3, 1], "item_id": [0, 1, 2, 0, 1, 2, 0, 2]},
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "zoo"
    (path / "data").mkdir(parents=True)
    return path


def shards(folder, part, number, end=""):
    return [folder / f"{part}-{i:05}-of-{number:05}{end}.parquet" for i in range(number)]


def same(points, others):
    assert torch.equal(points.labels.values, others.labels.values)
    assert torch.equal(points.labels.offsets, others.labels.offsets)
    assert torch.equal(points.rows, others.rows)


@pytest.mark.parametrize("end", ["", "-0123456789abcdef"])
@pytest.mark.parametrize("inside", [".", "data"])
def test_images_of_a_hub_read_as_from_one_file_a_part(folder, tmp_path, inside, end):
    (folder / "README.md").write_text("A card.")
    parts = {
        "train": (pixels(7), [3, 0, 1, 2, 0, 1, 2]),
        "test": (pixels(2, seed=1), [3, 1]),
        "validation": (pixels(1), [0]),
    }
    alone = tmp_path / "alone"
    alone.mkdir()
    for part, (images, labels) in parts.items():
        write(alone / f"{part}.parquet", images, labels, struct=True)
        files = shards(folder / inside, part, 3 if part == "train" else 1, end)
        for path, some in zip(
            files, np.array_split(np.arange(len(images)), len(files)), strict=True
        ):
            write(path, images[some], [labels[i] for i in some], struct=True)
    data = load(folder)
    whole = load(alone)
    assert data.name == "zoo"
    assert torch.equal(data.train.features, whole.train.features)
    assert data.validation is not None
    for points, others in (
        (data.train, whole.train),
        (data.test, whole.test),
        (data.validation, whole.validation),
    ):
        same(points, others)
    assert "train is in 3 files, which are read in their order." in data.notes
    named = load(
        shards(folder / inside, "train", 3, end)[1],
        Reading(test=shards(folder / inside, "validation", 1, end)[0]),
    )
    assert (len(named.train), len(named.test)) == (7, 1), "each names all of its part"


@pytest.mark.parametrize("name", CASES)
def test_items_in_several_files_read_as_from_one(folder, tmp_path, name):
    table = pa.table(CASES[name])
    pq.write_table(table, tmp_path / "train.parquet")
    for path, first in zip(shards(folder, "train", 2), (0, 3), strict=True):
        pq.write_table(table.slice(first, 3 if first == 0 else None), path)
    data = load(folder, Reading(format=name))
    whole = load(tmp_path / "train.parquet", Reading(format=name))
    same(data.train, whole.train)
    same(data.test, whole.test)
    assert data.label_names == whole.label_names


def test_a_file_more_for_training_is_not_a_file_for_testing(folder):
    first = pa.table({"items": ITEMS})
    second = pa.table({"items": ITEMS[::-1]})
    for path, table in zip(shards(folder, "train", 2), (first, second), strict=True):
        pq.write_table(table, path)
    digests = {load(folder).digest}
    for path, table in ((folder / "train.parquet", first), (folder / "test.parquet", second)):
        pq.write_table(table, path)
    for path in shards(folder, "train", 2):
        path.unlink()
    assert load(folder).digest not in digests


def test_a_missing_file_is_reported_and_so_is_one_too_many(folder):
    files = shards(folder, "train", 3)
    for path in files[:2]:
        write(path, pixels(2), [0, 1])
    with pytest.raises(
        HeadtailError,
        match=r"zoo` holds 2 of the 3 files of train: number 00002 of 00003 is missing. Fetch",
    ):
        load(folder)
    files[0].unlink()
    with pytest.raises(
        HeadtailError,
        match=r"holds 1 of the 3 files of train: numbers 00000, 00002 of 00003 are missing",
    ):
        load(folder)
    for path in (files[0], files[2], folder / "train-00000-of-00002.parquet"):
        write(path, pixels(2), [0, 1])
    with pytest.raises(
        HeadtailError,
        match=(
            r"train-00000-of-00002.parquet, train-00000-of-00003.parquet, .*: more than the \d "
            r"files"
        ),
    ):
        load(files[0])
    (folder / "train-00000-of-00002.parquet").unlink()
    write(folder / "train.parquet", pixels(2), [0, 1])
    with pytest.raises(
        HeadtailError,
        match=r"holds train-00000-of-00003.parquet and train.parquet, which are both train. Keep",
    ):
        load(folder)


def test_a_bad_row_is_reported_with_its_own_file(folder):
    first, second = shards(folder, "train", 2)
    write(first, pixels(3), [0, 1, 0])
    write(second, [pixels(1)[0], b"no image"], [0, 1])
    with pytest.raises(
        HeadtailError, match=r"train-00001-of-00002.parquet, row 1` is not an image"
    ):
        load(folder)
    assert (
        "Left out 1 of 5 images of train; the first: `"
        in load(folder, Reading(skip_bad_images=True)).notes[1]
    )
    write(second, pixels(2), [1, -1])
    with pytest.raises(
        HeadtailError, match=r"train-00001-of-00002.parquet`: row 1 \(from 0\) has the label −1"
    ):
        load(folder)
    write(second, pixels(2), pa.array([1, None]))
    with pytest.raises(
        HeadtailError,
        match=r"train-00001-of-00002.parquet`, column `label`: row 1 \(from 0\) is null",
    ):
        load(folder)
    write(second, pixels(1, 5, 5), [1])
    with pytest.raises(
        HeadtailError, match=r"train-00001-of-00002.parquet`, row 0: the image has 5 × 5 pixels"
    ):
        load(folder)
    write(second, pixels(1), ["1"])
    with pytest.raises(
        HeadtailError,
        match=r"train-00001-of-00002.parquet` has string in column `label`, where .* has int64",
    ):
        load(folder)


def test_a_bad_list_is_reported_with_its_own_file(folder):
    for path, items in zip(shards(folder, "train", 2), (ITEMS, [[1, 2], [1, None]]), strict=True):
        pq.write_table(pa.table({"items": items}), path)
    with pytest.raises(
        HeadtailError,
        match=(
            r"train-00001-of-00002.parquet`, column `items`: the list of row 1 \(from 0\) has a "
            r"null"
        ),
    ):
        load(folder)
