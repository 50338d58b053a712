"""Known data sets are recognised, and what differs from them is message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.catalogue import CATALOGUE, compare_counts, recognise
from headtail.data.image_catalogue import (
    KNOWN_IMAGES,
    compare_images,
    compare_profile,
    recognise_images,
)
from headtail.data.image_files import ImageFiles
from headtail.data.longtail import profile_counts
from headtail.data.points import DataSet, Points
from headtail.data.readers.text_folder import find_text
from headtail.data.readers.text_parts import read_xc

DELICIOUS = (
    Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")
    / "delicious"
)


def points(count: int, labels_each: int, num_features: int = 500, num_labels: int = 983) -> Points:
    bag = Bag(
        torch.zeros(count + 1, dtype=torch.int64),
        torch.empty(0, dtype=torch.int32),
        torch.empty(0),
        num_features,
    )
    labels = Ragged(torch.arange(labels_each).repeat(count), torch.arange(count + 1) * labels_each)
    return Points(bag, labels, num_labels)


def test_each_known_set_is_recognised_by_its_features_and_labels_and_by_nothing_less():
    for known in CATALOGUE:
        assert recognise(known.num_features, known.num_labels) is known
        assert recognise(known.num_features + 1, known.num_labels) is None
        assert recognise(known.num_features, known.num_labels + 1) is None


def test_points_a_label_follow_from_the_other_published_counts():
    delicious, amazon, wiki = CATALOGUE
    # The paper's table also gives points a label: of both parts for Delicious, of the training part
    # for the others.
    assert (
        delicious.num_train + delicious.num_test
    ) * delicious.labels_per_point / 983 == pytest.approx(311.61, rel=2e-3)
    assert amazon.num_train * amazon.labels_per_point / amazon.num_labels == pytest.approx(
        448.57, rel=2e-3
    )
    assert wiki.num_train * wiki.labels_per_point / wiki.num_labels == pytest.approx(
        17.46, rel=2e-3
    )


def test_the_published_counts_match_and_whatever_differs_is_reported():
    delicious = CATALOGUE[0]
    assert compare_counts(delicious, points(12_920, 19), points(3_185, 19)).startswith(
        "This is Delicious,"
    )
    message = compare_counts(delicious, points(12_000, 19), points(3_185, 19))
    assert (
        message == "This is not Delicious as published: 12,000 training points instead of 12,920."
    )
    assert "15.00 labels per point instead of 19.03" in compare_counts(
        delicious, points(12_920, 15), points(3_185, 15)
    )
    wide = compare_counts(
        delicious, points(12_920, 19, num_features=501, num_labels=984), points(3_185, 19)
    )
    assert wide.endswith("501 features instead of 500, 984 labels instead of 983.")


def images(counts: list[int], side: int | None) -> Points:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).int()
    number = len(labels)
    features = (
        ImageFiles(("x.jpg",) * number)
        if side is None
        else torch.zeros(1, dtype=torch.uint8).expand(number, 3, side, side)
    )
    return Points(features, Ragged(labels, torch.arange(number + 1)), len(counts))


@pytest.mark.parametrize("known", KNOWN_IMAGES, ids=lambda known: known.name)
def test_known_images_are_reported_and_so_is_one_image_too_few(known):
    rest = known.num_train - known.most - known.least
    labels = known.num_labels - 2
    counts = [
        known.most,
        *(rest // labels + (i < rest % labels) for i in range(labels)),
        known.least,
    ]
    # so the published counts can go together
    assert known.least <= min(counts) <= max(counts) <= known.most
    train = images(counts, known.side)
    test = images([known.num_test, *[0] * (known.num_labels - 1)], known.side)
    assert recognise_images(train) is known
    message = compare_images(known, DataSet("x", train, test))
    own = known.name == "Tiny-ImageNet-32"  # which has not been published in this form
    counts = "the counts known for this set" if own else "the published number of images and labels"
    assert message == f"This is {known.name}, with {counts}."
    fewer = train.select(torch.arange(1, len(train)))
    message = compare_images(known, DataSet("x", fewer, test))
    counts = "the counts known for this set" if own else "its published counts"
    assert message.startswith(
        f"These have the labels of {known.name}, but not {counts}: {known.num_train - 1:,} training"
    )


def test_images_of_another_size_or_number_of_labels_are_not_known():
    assert recognise_images(images([1] * 100, 32)).name == "CIFAR-100"
    assert recognise_images(images([1] * 100, 64)) is None
    assert recognise_images(images([1] * 100, None)) is None
    assert recognise_images(images([1] * 99, 32)) is None
    assert recognise_images(images([1] * 1000, None)).name == "ImageNet-LT"


def test_profiles_of_known_images_are_checked_at_the_published_imbalance_only():
    for known in KNOWN_IMAGES:
        for profile, number in known.profiles:
            assert sum(profile_counts(profile, known.num_labels, known.most, 100)) == number
            own = known.name == "Tiny-ImageNet-32"
            ending = "with the counts known for this set." if own else "as published."
            assert compare_profile(known, profile, 100, number).endswith(f"{profile}, {ending}")
            assert ("published" in compare_profile(known, profile, 100, number - 1)) != own
            assert compare_profile(known, profile, 100, number - 1).endswith(
                f"but here are {number - 1:,}."
            )
            assert compare_profile(known, profile, 50, number) is None
    assert compare_profile(KNOWN_IMAGES[-1], "exp", 100, 5) is None


@pytest.mark.skipif(
    not DELICIOUS.exists(),
    reason=f"Delicious is not in {DELICIOUS}; set HEADTAIL_DATA to the folder above it",
)
def test_delicious_is_delicious(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path))
    found = find_text(DELICIOUS)
    data = read_xc(found.train, found.test, splits=found.splits)
    known = recognise(data.train.num_features, data.train.num_labels)
    assert known is not None
    assert data.name == "delicious"
    assert (
        compare_counts(known, data.train, data.test)
        == "This is Delicious, with the published number of points, features and labels."
    )
    entries = sum(
        len(part.features.columns)
        for part in (data.train, data.test)
        if isinstance(part.features, Bag)
    )
    assert entries / (len(data.train) + len(data.test)) == pytest.approx(
        known.features_per_point, abs=0.05
    )
