"""Lists, JSON and class folders of images, in exactly the forms in which the field has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from headtail import HeadtailError
from headtail.data.image_files import ImageFiles
from headtail.data.load import load
from headtail.data.readers.image_listing import list_images
from headtail.data.readers.located_images import files_of
from headtail.data.reading import Reading


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "zoo"
    path.mkdir()
    return path


def draw(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
        path, "JPEG"
    )


def write_list(path, lines, base=None, missing=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} {label}\n" for name, label in lines))
    for i, (name, _) in enumerate(lines):
        if name not in missing:
            draw((base or path.parent) / name, i)


IMAGENET = [
    ("train/n01440764/n01440764_190.JPEG", 0),
    ("train/n01443537/n01443537_16.JPEG", 1),
    ("train/n01440764/x y.JPEG", 0),
]
IMAGENET_TEST = [("val/ILSVRC2012_val_00000001.JPEG", 1), ("val/ILSVRC2012_val_00000002.JPEG", 0)]
PLACES = [("data_256/a/airport_terminal/00000001.jpg", 0), ("data_256/z/zoo/00000002.jpg", 1)]
NATURE = [("train_val2018/Plantae/7477/3b60.jpg", 1), ("train_val2018/Aves/2822/4713.jpg", 0)]


@pytest.mark.parametrize(
    ("prefix", "train", "test", "tested"),
    [
        ("ImageNet_LT", IMAGENET, IMAGENET_TEST, "test"),
        ("Places_LT", PLACES, PLACES[:1], "test"),
        ("iNaturalist18", NATURE, NATURE[::-1], "val"),
    ],
)
def test_the_lists_of_the_long_tail_community_are_read(folder, prefix, train, test, tested):
    write_list(folder / f"{prefix}_train.txt", train)
    write_list(folder / f"{prefix}_{tested}.txt", test)
    data = load(folder)
    assert data.name == prefix.lower()
    assert isinstance(data.train.features, ImageFiles)
    assert data.train.features.paths == tuple(str(folder / name) for name, _ in train)
    assert data.train.labels.values.tolist() == [label for _, label in train]
    assert data.test.labels.values.tolist() == [label for _, label in test]
    assert (data.train.num_labels, data.train.image_size, data.train.num_features) == (
        2,
        (224, 224),
        3 * 224 * 224,
    )
    images = data.test.features.decoded(torch.tensor([0]), train=False, seed=0)
    assert images.shape == (1, 3, 224, 224)
    assert data.notes[0] == "Read as image files."


def test_the_validation_list_validates_where_there_is_a_test_list(folder):
    write_list(folder / "ImageNet_LT_train.txt", IMAGENET)
    write_list(folder / "ImageNet_LT_val.txt", IMAGENET[:1])
    write_list(folder / "ImageNet_LT_test.txt", IMAGENET_TEST)
    (folder / "README.txt").write_text("Not a list.")
    data = load(folder)
    assert data.validation is not None
    assert (len(data.validation), len(data.test)) == (1, 2)


def test_a_list_alone_holds_images_out_and_a_test_list_can_be_named(folder):
    write_list(folder / "mine.txt", [(f"{i}.jpg", i % 2) for i in range(10)])
    data = load(folder / "mine.txt")
    assert (data.name, len(data.train), len(data.test)) == ("mine", 8, 2)
    write_list(folder / "other.lst", [("0.jpg", 1)])
    data = load(folder / "mine.txt", Reading(test=folder / "other.lst"))
    assert (len(data.train), len(data.test)) == (10, 1)


def test_paths_start_from_the_root_or_the_folder_of_the_list(folder, tmp_path):
    write_list(folder / "a_train.txt", PLACES, base=tmp_path / "disk")
    with pytest.raises(HeadtailError) as message:
        load(folder)
    assert str(message.value) == (
        f"`{folder / 'a_train.txt'}` names `{PLACES[0][0]}`, which is not in `{folder}`, and 1 "
        "more of its 2. Pass the folder that paths start from (`root`), or leave such images out "
        "(`skip_bad_images`)."
    )
    data = load(folder, Reading(root=tmp_path / "disk", holdout=0.5))
    assert all(path.startswith(str(tmp_path / "disk")) for path in data.train.features.paths)
    draw(folder / "near.jpg")
    write_list(folder / "a_test.txt", [("near.jpg", 0)])
    assert load(folder, Reading(root=tmp_path / "disk")).test.features.paths == (
        str(folder / "near.jpg"),
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(HeadtailError, match=r"which is neither in `.*empty` nor in `.*zoo`"):
        load(folder, Reading(root=tmp_path / "empty"))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("a.jpg 0\nb.jpg\n", r"a_train.txt, line 2: `b.jpg` is not a path followed by a label id"),
        ("a.jpg 0\n\nb.jpg -1\n", r"line 3: `b.jpg -1` is not a path"),
        ("a.jpg 0\nb.jpg one\n", r"line 2: `b.jpg one` is not a path"),
        ("a.jpg 0\nb.jpg 99999999999999999999999\n", r"line 2: `b.jpg 9999"),
        ("a.jpg 0\nb.jpg ²\n", r"line 2"),
    ],
)
def test_a_bad_line_is_reported(folder, lines, sentence):
    (folder / "a_train.txt").write_text(lines)
    with pytest.raises(HeadtailError, match=sentence):
        load(folder)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "ImageNet_LT_PART.txt` lists no image"),
        ("\n\n", "ImageNet_LT_PART.txt` lists no image"),
        (
            "val/1.JPEG\nval/2.JPEG 0\n",
            "ImageNet_LT_PART.txt, line 1: `val/1.JPEG` is not a path followed by a label id",
        ),
        (
            "val/1.JPEG,0\n",
            "ImageNet_LT_PART.txt, line 1: `val/1.JPEG,0` is not a path followed by a label id",
        ),
    ],
)
def test_a_damaged_part_is_reported_and_not_left_out(folder, part, text, sentence):
    write_list(folder / "ImageNet_LT_train.txt", IMAGENET)
    write_list(folder / "ImageNet_LT_test.txt", IMAGENET_TEST)
    (folder / f"ImageNet_LT_{part}.txt").write_text(text)
    (folder / "README.txt").write_text("What lies here.\n")
    with pytest.raises(HeadtailError, match=sentence.replace("PART", part)):
        load(folder)


def test_a_list_goes_before_another_file_of_its_name(folder):
    (folder / "train.json").write_text(nature(KINDS))
    (folder / "train.txt").write_text("What lies here.\n")
    for i, (name, _) in enumerate(KINDS):
        draw(folder / name, i)
    assert load(folder, Reading(holdout=0.5)).label_names == ["species 3", "species 5", "species 9"]


def test_an_empty_test_folder_is_reported_and_not_left_out(folder):
    for name in ("train/cat/1.jpg", "train/dog/2.jpg"):
        draw(folder / name)
    (folder / "val").mkdir()
    with pytest.raises(HeadtailError, match="val` is empty"):
        load(folder)


def test_a_byte_order_mark_is_no_part_of_a_path(folder):
    write_list(folder / "train.txt", IMAGENET)
    write_list(folder / "test.txt", IMAGENET_TEST)
    path = folder / "train.txt"
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert load(folder).train.features.paths[0] == str(folder / IMAGENET[0][0])


def test_a_root_must_be_there(folder, tmp_path):
    write_list(folder / "train.txt", IMAGENET)
    with pytest.raises(HeadtailError, match="nowhere` does not exist"):
        load(folder, Reading(root=tmp_path / "nowhere"))


def test_an_imbalance_needs_a_profile(folder):
    write_list(folder / "train.txt", IMAGENET)
    with pytest.raises(HeadtailError, match="`imbalance` shapes a profile"):
        load(folder, Reading(imbalance=50))


def test_labels_beyond_those_of_training_are_reported(folder):
    write_list(folder / "a_train.txt", PLACES)
    write_list(folder / "a_test.txt", [PLACES[0]])
    write_list(folder / "a_val.txt", [("t/1.jpg", 0), ("t/2.jpg", 2)])
    with pytest.raises(
        HeadtailError,
        match=r"a_val.txt`: `t/2.jpg` has the label 2, but training .* has labels 0 … 1",
    ):
        load(folder)


def test_a_test_image_needs_no_label_of_training(folder):
    write_list(folder / "a_train.txt", PLACES)
    write_list(folder / "a_test.txt", [("t/1.jpg", -1), ("t/2.jpg", 0), ("t/3.jpg", 70)])
    data = load(folder)
    assert (len(data.test), data.test.labels.offsets.tolist()) == (3, [0, 0, 1, 1])
    assert data.test.labels.values.tolist() == [0]
    assert "2 of 3 test images have a label that never occurs in training, or none" in " ".join(
        data.notes
    )
    assert "no training image" not in " ".join(data.notes)


def test_labels_without_a_training_image_are_counted_in_a_note(folder):
    write_list(folder / "a_train.txt", [*PLACES, ("t/1.jpg", 70)])
    write_list(folder / "a_test.txt", PLACES)
    assert "68 of the 71 labels have no training image." in load(folder).notes


def test_test_lists_do_not_train(folder):
    write_list(folder / "a_test.txt", PLACES)
    with pytest.raises(
        HeadtailError,
        match=r"holds a_test.txt, which is not for training. Add a list called `train`",
    ):
        load(folder)


def test_a_list_of_files_without_an_ending_is_read_if_it_is_asked_for(folder):
    write_list(folder / "all", [(f"image {i}", i % 2) for i in range(5)])
    assert load(folder / "all", Reading(format="images")).train.features.paths[0] == str(
        folder / "image 0"
    )


def test_two_training_lists_are_not_mixed(folder):
    write_list(folder / "a_train.txt", PLACES)
    write_list(folder / "b_train.txt", PLACES)
    with pytest.raises(
        HeadtailError, match=r"holds a_train.txt, b_train.txt. Name the list to train on"
    ):
        load(folder)


KINDS = [(name, category) for (name, _), category in zip(NATURE, (3, 9), strict=True)]


def nature(listed, categories=(3, 5, 9), **changed):
    """As the challenge of 2018 writes it."""
    held = {
        "info": {"year": 2018},
        "images": [
            {"id": 10 + i, "file_name": name, "width": 30, "height": 20}
            for i, (name, _) in enumerate(listed)
        ],
        "licenses": [],
        "annotations": [
            {"id": i, "image_id": 10 + i, "category_id": category}
            for i, (_, category) in enumerate(listed)
        ],
        "categories": [
            {"id": one, "name": f"species {one}", "supercategory": "Aves"}
            for one in reversed(categories)
        ],
    }
    return json.dumps({key: value for key, value in (held | changed).items() if value is not None})


def test_inaturalists_own_files_are_read(folder):
    train = [("train_val2018/Aves/9/a.jpg", 9), ("train_val2018/Aves/3/b.jpg", 3)]
    test = [("train_val2018/Aves/5/c.jpg", 5)]
    for i, (name, _) in enumerate(train + test):
        draw(folder / name, i)
    (folder / "train2018.json").write_text(nature(train))
    (folder / "val2018.json").write_text(nature(test))
    # its labels are secret
    (folder / "test2018.json").write_text(nature([("test2018/x.jpg", 3)], annotations=None))
    (folder / "categories.json").write_text("[]")
    data = load(folder)
    assert (data.name, data.train.num_labels) == ("zoo", 3)
    assert data.train.labels.values.tolist() == [2, 0]
    assert data.test.labels.values.tolist() == [1]
    assert data.label_names == ["species 3", "species 5", "species 9"]
    assert data.train.features.paths[0] == str(folder / train[0][0])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            nature([("a.jpg", 4)]),
            r"an annotation names the category 4, but its 3 categories do not hold it",
        ),
        (
            nature([("a.jpg", 3)], images=[{"id": 7, "file_name": "a.jpg"}]),
            r"names the image 10, which is not among its images",
        ),
        (
            nature([("a.jpg", 3)], categories=(3,), images=None),
            r"lacks 'images'; a JSON list has `images` \(id, file_name\)",
        ),
        (nature([("a.jpg", 3)], images=[{"id": 10}]), r"lacks 'file_name'"),
        (nature([("a.jpg", 3)], images=[7]), r"is not a readable JSON list"),
        (nature([("a.jpg", 3)])[:-20], r"is not a readable JSON list of images"),
        (nature([]), r"lists no image"),
    ],
)
def test_what_is_wrong_with_a_json_list_is_reported(folder, content, sentence):
    (folder / "train2018.json").write_text(content)
    with pytest.raises(HeadtailError, match=rf"train2018.json`.*{sentence}") as message:
        load(folder)
    assert "\n" not in str(message.value)


def test_a_truncated_json_list_is_reported_in_a_folder_too(folder):
    whole = nature(KINDS)
    (folder / "train2018.json").write_text(whole)
    (folder / "val2018.json").write_text(whole[: whole.index("annotations") - 2])
    with pytest.raises(HeadtailError, match=r"val2018\.json` is not a readable JSON list"):
        load(folder)
    with pytest.raises(HeadtailError, match=r"val2018\.json` is not a readable JSON list"):
        load(folder / "val2018.json")


def test_the_test_images_of_a_challenge_have_no_labels_and_are_left_out(folder):
    (folder / "train2018.json").write_text(nature(KINDS))
    (folder / "val2018.json").write_text(nature(KINDS))
    (folder / "test2018.json").write_text(json.dumps({"images": [{"id": 1, "file_name": "a.jpg"}]}))
    for i, (name, _) in enumerate(KINDS):
        draw(folder / name, i)
    assert len(load(folder).test) == len(KINDS)


def test_class_folders_are_read_in_the_order_of_their_names(folder):
    for name in (
        "train/zebra/2.jpg",
        "train/zebra/10.JPEG",
        "train/ant/images/1.png",
        "val/zebra/9.jpg",
        "train/ant/notes.txt",
        "train/ant/a/b/deep.jpg",
    ):
        draw(folder / name)
    data = load(folder)
    assert data.label_names == ["ant", "zebra"]
    assert data.train.features.paths == tuple(
        str(folder / "train" / one) for one in ("ant/images/1.png", "zebra/10.JPEG", "zebra/2.jpg")
    )
    assert data.train.labels.values.tolist() == [0, 1, 1]
    assert data.test.labels.values.tolist() == [1]
    assert data.name == "zoo"
    draw(folder / "val" / "yak" / "1.jpg")
    assert load(folder).test.labels.offsets.tolist() == [0, 0, 1]
    draw(folder / "test" / "ant" / "1.jpg")
    with pytest.raises(
        HeadtailError, match=r"val` has the label `yak`, which training \(`.*train`\) lacks"
    ):
        load(folder)


def test_class_folders_without_a_training_folder_hold_images_out(folder):
    for i in range(10):
        draw(folder / ("ant" if i % 2 else "zebra") / f"{i}.jpg", i)
    data = load(folder)
    assert (data.name, len(data.train), len(data.test), data.train.num_labels) == ("zoo", 8, 2, 2)


def test_a_list_goes_before_the_folders_that_it_names(folder):
    write_list(folder / "ImageNet_LT_train.txt", IMAGENET[:2])
    draw(folder / "train" / "n01440764" / "not in the list.JPEG")
    write_list(folder / "ImageNet_LT_test.txt", IMAGENET_TEST)
    assert len(load(folder).train) == 2


def test_bad_files_can_be_left_out_and_are_counted(folder, monkeypatch):
    lines = [(f"{i}.jpg", i % 3) for i in range(12)]
    write_list(folder / "a_train.txt", lines, missing=("4.jpg", "5.jpg"))
    write_list(folder / "a_test.txt", lines[:1])
    (folder / "7.jpg").write_bytes((folder / "7.jpg").read_bytes()[:300])
    (folder / "9.jpg").write_text("no image")
    with pytest.raises(HeadtailError, match=r"names `4.jpg`, which is not in"):
        load(folder)
    data = load(folder, Reading(skip_bad_images=True))
    assert [path.rsplit("/", 1)[1] for path in data.train.features.paths] == [
        f"{i}.jpg" for i in (0, 1, 2, 3, 6, 8, 10, 11)
    ]
    assert data.train.labels.values.tolist() == [i % 3 for i in (0, 1, 2, 3, 6, 8, 10, 11)]
    assert (
        data.notes[1]
        == "Left out 2 of 12 images of a_train.txt that do not exist; the first is `4.jpg`."
    )
    assert data.notes[
        2
    ] == f"Left out 2 of 12 images of a_train.txt; the first: `{folder / '7.jpg'}` " + (
        "is cut off before the image is complete."
    )
    reports = []
    again = load(
        folder, Reading(skip_bad_images=True), progress=lambda what, _: reports.append(what)
    )
    assert "decoding every image once" not in reports, "the bad files are in the cache"
    assert again.train.features.paths == data.train.features.paths
    assert again.digest == data.digest


def test_a_file_that_changes_is_looked_at_again(folder):
    write_list(folder / "a_train.txt", [(f"{i}.jpg", 0) for i in range(4)])
    (folder / "1.jpg").write_text("no image")
    assert len(load(folder, Reading(skip_bad_images=True, holdout=0.3)).train) == 2
    draw(folder / "1.jpg", 1)
    data = load(folder, Reading(skip_bad_images=True, holdout=0.3))
    assert len(data.train) + len(data.test) == 4


def test_nothing_left_is_reported(folder):
    write_list(folder / "a_train.txt", PLACES, missing=[name for name, _ in PLACES])
    with pytest.raises(HeadtailError, match=r"none of its 2 images can be used. Left out 2 of 2"):
        load(folder, Reading(skip_bad_images=True))


def test_the_digest_follows_the_images_and_not_their_place(folder, tmp_path):
    write_list(folder / "a_train.txt", PLACES * 3)
    first = load(folder).digest
    folder.rename(tmp_path / "moved")
    assert load(tmp_path / "moved").digest == first
    (tmp_path / "moved" / PLACES[0][0]).write_bytes(b"larger" * 1000)
    assert load(tmp_path / "moved").digest != first


def test_profiles_thin_lists_too(folder):
    write_list(folder / "a_train.txt", [(f"{i}.jpg", i % 2) for i in range(8)])
    write_list(folder / "a_test.txt", [("0.jpg", 0)])
    data = load(folder, Reading(profile="exp", imbalance=4))
    assert [path.rsplit("/", 1)[1] for path in data.train.features.paths] == [
        "0.jpg",
        "1.jpg",
        "2.jpg",
        "4.jpg",
        "6.jpg",
    ]
    assert data.name == "a-exp4"


def test_progress_is_reported(folder):
    write_list(folder / "a_train.txt", PLACES * 2)
    listing = list_images(folder / "a_train.txt", may_lack=False)
    reports = []
    files_of(listing, None, True, lambda *report: reports.append(report), report_every=1)
    assert ("looking for the images of a_train.txt", 0.5) in reports
    assert ("decoding every image once", 0.0) in reports


@pytest.mark.parametrize(
    ("part", "name", "value", "sentence"),
    [
        ("annotations", "image_id", [1], "`image_id` is a list, not a whole number"),
        ("annotations", "category_id", float("inf"), "`category_id` is inf, not a whole number"),
        ("annotations", "category_id", 1.5, "`category_id` is 1.5, not a whole number"),
        ("annotations", "category_id", 10**30, "`category_id` is a int, not a whole number"),
        ("annotations", "category_id", None, "`category_id` is None"),
        ("categories", "id", 0.9, "`id` is 0.9, not a whole number"),
        ("images", "file_name", ["a"], "`file_name` is a list, not text"),
        ("images", "id", {}, "`id` is a dict, not a whole number"),
    ],
)
def test_numbers_of_a_json_list_that_are_none_get_a_sentence(tmp_path, part, name, value, sentence):
    held = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [{"image_id": 1, "category_id": 0}, {"image_id": 2, "category_id": 1}],
        "categories": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}],
    }
    held[part][0][name] = value
    (tmp_path / "train.json").write_text(json.dumps(held))
    with pytest.raises(HeadtailError, match=sentence):
        load(tmp_path / "train.json")


def test_a_label_of_fifty_digits_is_not_one(tmp_path):
    for label in ("1" * 50, "0" * 30 + "1" * 20):
        (tmp_path / "train.txt").write_text(f"a.png 0\nb.png {label}\n")
        with pytest.raises(HeadtailError, match=r"line 2: .* is not a path followed by a label id"):
            load(tmp_path / "train.txt")
