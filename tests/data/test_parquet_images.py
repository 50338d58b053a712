"""Images in Parquet: decoded once, of one size, with the labels of the file."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.readers.parquet_images import read_parquet_images
from headtail.data.reading import Reading


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "zoo"
    path.mkdir()
    return path


def pixels(number, height=4, width=6, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, height, width, 3), dtype=np.uint8)


def png(array):
    file = BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def write(path, images, labels, image="image", label="label", struct=False):
    content = [one if isinstance(one, (bytes, type(None))) else png(one) for one in images]
    column = [{"bytes": one, "path": "x"} for one in content] if struct else content
    pq.write_table(pa.table({image: column, label: labels}), path)


def test_images_are_the_same_whatever_the_number_decoded_at_once(folder):
    write(folder / "train.parquet", pixels(8), [3, 0, 1, 2, 0, 1, 2, 3])
    for at_once in (3, 8, 1000):
        data = read_parquet_images(
            folder / "train.parquet",
            folder / "train.parquet",
            skip_bad_images=at_once == 8,
            at_once=at_once,
        )
        assert torch.equal(data.train.features, torch.from_numpy(pixels(8).transpose(0, 3, 1, 2)))


def test_images_come_out_pixel_by_pixel_in_the_order_of_the_file(folder):
    write(folder / "train.parquet", pixels(8), [3, 0, 1, 2, 0, 1, 2, 3])
    write(folder / "val.parquet", pixels(2, seed=1), [3, 1])
    data = load(folder)
    assert (data.name, data.train.image_size, data.train.num_features, data.train.num_labels) == (
        "zoo",
        (4, 6),
        72,
        4,
    )
    assert torch.equal(data.train.features, torch.from_numpy(pixels(8).transpose(0, 3, 1, 2)))
    assert torch.equal(
        data.test.features, torch.from_numpy(pixels(2, seed=1).transpose(0, 3, 1, 2))
    )
    assert data.train.labels.values.tolist() == [3, 0, 1, 2, 0, 1, 2, 3]
    assert data.test.labels.values.tolist() == [3, 1]
    assert data.notes == (
        "Read as images.",
        "There are no other test images than those of val.parquet.",
    )
    assert data.label_names is None
    assert data.validation is None


def test_a_test_file_goes_before_a_validation_file_which_then_validates(folder):
    for name, number in {"train": 4, "val": 2, "test": 3}.items():
        write(folder / f"{name}.parquet", pixels(number), [0, 1, 0, 1][:number])
    data = load(folder)
    assert data.validation is not None
    assert (len(data.train), len(data.test), len(data.validation)) == (4, 3, 2)


@pytest.mark.parametrize(
    ("image", "label", "struct"), [("img", "fine_label", True), ("Image", "Label", False)]
)
def test_columns_may_be_called_and_nested_as_hubs_do_it(folder, image, label, struct):
    write(folder / "train.parquet", pixels(3), ["cat", "dog", "cat"], image, label, struct)
    write(folder / "test.parquet", pixels(1), ["dog"], image, label, struct)
    data = load(folder)
    assert data.label_names == ["cat", "dog"]
    assert data.train.labels.values.tolist() == [0, 1, 0]
    assert data.test.labels.values.tolist() == [1]


def test_a_file_alone_holds_images_out(folder):
    write(folder / "all.parquet", pixels(10), [0, 1] * 5)
    data = load(folder / "all.parquet", Reading(holdout=0.3))
    assert (len(data.train), len(data.test)) == (7, 3)
    assert data.notes[-1] == "There is no test part: 30% of the images are held out for testing."


def test_the_second_time_they_come_from_the_cache(folder):
    write(folder / "train.parquet", pixels(4), [0, 1, 0, 1])
    reports = []
    first = load(folder, progress=lambda *report: reports.append(report))
    assert reports
    reports.clear()
    again = load(folder, progress=lambda *report: reports.append(report))
    assert reports == [], "nothing was decoded again"
    assert again.digest == first.digest
    assert torch.equal(again.train.features, first.train.features)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        ([png(pixels(1)[0]), b"no image"], [0, 1], r"train.parquet, row 1` is not an image"),
        (
            [png(pixels(1)[0])[:60], b""],
            [0, 1],
            r"train.parquet, row 0` (is cut off|cannot be decoded)",
        ),
        ([png(pixels(1)[0]), None], [0, 1], r"train.parquet, row 1` is empty"),
        (
            [pixels(1)[0], pixels(1, 5, 5)[0]],
            [0, 1],
            r"row 1: the image has 5 × 5 pixels, but those before it 6 × 4. Images",
        ),
        ([pixels(1)[0], pixels(1)[0]], [0, None], r"column `label`: row 1 \(from 0\) is null"),
        (
            [pixels(1)[0], pixels(1)[0]],
            [0.5, 1.5],
            r"column `label` holds fractions",
        ),
    ],
    ids=["no image", "cut", "null", "other size", "null label", "float label"],
)
def test_what_is_wrong_with_a_row_is_reported(folder, images, labels, sentence):
    write(folder / "train.parquet", images, labels)
    with pytest.raises(HeadtailError, match=sentence) as message:
        load(folder)
    assert "\n" not in str(message.value)
    assert not list((folder.parent / ".cache").glob("*/about.json"))


def test_bad_images_can_be_left_out_and_are_counted(folder):
    images = [pixels(1)[0], b"no image", pixels(1, 5, 5)[0], pixels(1, seed=2)[0]]
    write(folder / "train.parquet", images, [0, 0, 1, 1])
    write(folder / "test.parquet", [b"", pixels(1)[0]], [0, 1])
    data = load(folder, Reading(skip_bad_images=True))
    assert data.train.labels.values.tolist() == [0, 1]
    assert torch.equal(
        data.train.features[1], torch.from_numpy(pixels(1, seed=2)[0].transpose(2, 0, 1))
    )
    assert data.test.labels.values.tolist() == [1]
    assert (data.train.rows.tolist(), data.test.rows.tolist()) == ([0, 3], [1])
    assert "Left out 2 of 4 images of train.parquet; the first: `" in data.notes[1]
    assert "row 1` is not an image" in data.notes[1]
    assert data.notes[2].startswith("Left out 1 of 2 images of test.parquet")
    write(folder / "train.parquet", [b"", b"x"], [0, 1])
    with pytest.raises(
        HeadtailError, match=r"train.parquet` has no image that can be decoded: .*row 0` is empty"
    ):
        load(folder, Reading(skip_bad_images=True))


def test_labels_that_training_does_not_have_are_reported(folder):
    write(folder / "train.parquet", pixels(2), [0, 1])
    write(folder / "val.parquet", pixels(2), [1, 2])
    write(folder / "test.parquet", pixels(3), pa.array([2, 1, None]))
    with pytest.raises(
        HeadtailError,
        match=r"val.parquet`: row 1 \(from 0\) has the label 2, which is not among the 2 of",
    ):
        load(folder)
    (folder / "val.parquet").unlink()
    data = load(folder)
    assert (data.test.labels.values.tolist(), data.test.labels.offsets.tolist()) == (
        [1],
        [0, 0, 1, 1],
    )
    assert "2 of 3 test images have a label that never occurs in training, or none" in " ".join(
        data.notes
    )
    write(folder / "test.parquet", pixels(2), ["0", "1"])
    with pytest.raises(
        HeadtailError, match=r"column `label` holds strings, but training has numbers"
    ):
        load(folder)


def test_a_label_of_minus_one_is_none_as_hubs_write_it(folder):
    write(folder / "train.parquet", pixels(3), [1, -1, 0])
    none = (
        r"train.parquet`: row 1 \(from 0\) has the label −1, which means none. Drop such "
        r"rows; a label with that name is a"
    )
    with pytest.raises(HeadtailError, match=none):
        load(folder)
    write(folder / "train.parquet", pixels(3), [-1, -1, -1])
    with pytest.raises(
        HeadtailError,
        match=r"train.parquet` has no labels: all 3 are −1. Train on a file that has some",
    ):
        load(folder)
    write(folder / "train.parquet", pixels(3), [1, 0, 1])
    write(folder / "test.parquet", pixels(2), [1, 0])
    write(folder / "validation.parquet", pixels(2), [-1, -1])
    with pytest.raises(
        HeadtailError, match=r"validation.parquet` has no labels: all 2 are −1. Leave that file out"
    ):
        load(folder)


@pytest.mark.parametrize("labels", [[-1, -1], [-1, None], [None, None]])
def test_a_test_part_without_any_label_is_reported_with_the_part_to_measure_on(folder, labels):
    write(folder / "train.parquet", pixels(4), [1, 0, 1, 0])
    write(folder / "test.parquet", pixels(2), pa.array(labels, pa.int64()))
    message = (
        "test.parquet has no labels (all are −1 or null): its images are answered, but not "
        "measured."
    )
    data = load(folder)
    assert (len(data.test), data.test.num_pairs) == (2, 0)
    assert data.notes[1:] == (
        f"{message} To measure, name a part that has labels as the test part, or leave that file "
        "out.",
    )
    write(folder / "val.parquet", pixels(2), [0, 1])
    assert load(folder).notes[1:] == (
        f"{message} To measure, name val.parquet as the test part, or leave that file out.",
    )
    measured = load(folder, Reading(test=folder / "val.parquet"))
    assert measured.test.labels.values.tolist() == [0, 1]
    assert measured.validation is None, "what is tested on must not choose the epoch too"


def test_columns_that_hold_no_images_are_reported(folder):
    pq.write_table(pa.table({"image": ["a.jpg"], "label": [0]}), folder / "train.parquet")
    with pytest.raises(
        HeadtailError, match=r"column `image` holds string, but must hold encoded images as bytes"
    ):
        load(folder)
    pq.write_table(
        pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}),
        folder / "train.parquet",
    )
    with pytest.raises(HeadtailError, match=r"train.parquet` has no rows"):
        load(folder)
    pq.write_table(pa.table({"photo": [b"x"], "label": [0]}), folder / "train.parquet")
    with pytest.raises(
        HeadtailError,
        match=r"has the columns `photo`, `label`. Images need the columns `image` and `label`",
    ):
        load(folder, Reading(format="images"))


def test_progress_is_reported(folder):
    write(folder / "train.parquet", pixels(4), [0, 1, 0, 1])
    heard = []
    load(folder, progress=lambda what, share: heard.append((what, share)))
    assert ("decoding train.parquet", 0.0) in heard


@pytest.mark.parametrize(
    ("labels", "names", "wanted"),
    [
        ([2, 0, 2, 0], ["ant", "bee", "cat"], ["ant", "cat"]),
        ([1, 0, 1, 0], ["ant", "bee", "cat"], ["ant", "bee"]),
        ([3, 0, 3, 0], ["ant", "bee", "cat"], [0, 3]),  # there is no fourth name
        ([-2, 0, -2, 0], ["ant", "bee", "cat"], [-2, 0]),  # nor one before the first
        ([1, 0, 1, 0], None, None),
    ],
)
def test_labels_have_the_names_that_a_hub_notes(folder, labels, names, wanted):
    for part in ("train", "test"):
        path = folder / f"{part}.parquet"
        write(path, pixels(4), labels)
        noted = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = pq.read_table(path).replace_schema_metadata(
            {b"huggingface": json.dumps(noted).encode()}
        )
        pq.write_table(table, path)
    assert load(folder).label_names == wanted


def test_deeply_nested_notes_of_a_hub_give_no_names(folder):
    path = folder / "train.parquet"
    write(path, pixels(4), [2, 0, 2, 0])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"huggingface": b"[" * 200_000}), path)
    assert load(folder).label_names == [0, 2]
