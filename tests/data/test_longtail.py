"""Profiles: the published counts, the first images of each label, exact to the last image."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtail import HeadtailError, Ragged
from headtail.data.image_files import ImageFiles
from headtail.data.load import load
from headtail.data.longtail import first_of_each, long_tail, profile_counts
from headtail.data.points import DataSet, Points
from headtail.data.reading import Reading

TINY = (
    Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")
    / "tiny-imagenet-32"
)


def images(labels, num_labels, files=False):
    number = len(labels)
    features = torch.arange(number * 12).remainder(251).to(torch.uint8).view(number, 3, 2, 2)
    one_each = Ragged(torch.tensor(labels, dtype=torch.int32), torch.arange(number + 1))
    return Points(
        ImageFiles(tuple(f"{i}.jpg" for i in range(number))) if files else features,
        one_each,
        num_labels,
    )


def data_of(labels, num_labels, files=False):
    return DataSet(
        "few", images(labels, num_labels, files), images([0, 1], num_labels, files), digest="d"
    )


@pytest.mark.parametrize(
    ("num_labels", "most", "exp", "step"),
    [(100, 500, 10_847, 25_250), (10, 5_000, 12_406, 25_250), (200, 500, 21_549, 50_500)],
    ids=["CIFAR-100", "CIFAR-10", "Tiny-ImageNet"],
)
def test_counts_are_the_published_ones(num_labels, most, exp, step):
    assert sum(profile_counts("exp", num_labels, most, 100)) == exp
    assert sum(profile_counts("step", num_labels, most, 100)) == step


def test_cifar_100_has_the_papers_head_torso_and_tail():
    counts = profile_counts("exp", 100, 500, 100)
    assert [
        sum(n >= 100 for n in counts),
        sum(20 <= n < 100 for n in counts),
        sum(n < 20 for n in counts),
    ] == [35, 35, 30]
    counts = profile_counts("step", 100, 500, 100)
    assert [
        sum(n >= 100 for n in counts),
        sum(20 <= n < 100 for n in counts),
        sum(n < 20 for n in counts),
    ] == [50, 0, 50]


def test_whole_numbers_are_not_lost_to_rounding():
    # In floats 1000 · 10^(−1/3 · 3) and the like can end below the whole number that they are.
    assert profile_counts("exp", 4, 1000, 1000) == [1000, 100, 10, 1]
    assert profile_counts("exp", 3, 49, 49) == [49, 7, 1]
    for last in range(1, 40):
        assert profile_counts("exp", last + 1, 2**last, 2**last) == [
            2 ** (last - i) for i in range(last + 1)
        ]


@given(
    st.integers(2, 60), st.integers(1, 3000), st.sampled_from([1, 1.5, 2, 10, 33.3, 50, 100, 256])
)
@settings(max_examples=60, deadline=None)
def test_exp_counts_are_the_floor_in_exact_arithmetic(num_labels, most, imbalance):
    if most < imbalance:
        return
    ratio = Fraction(str(imbalance))
    last = num_labels - 1
    for i, count in enumerate(profile_counts("exp", num_labels, most, imbalance)):
        assert count**last * ratio**i <= most**last < (count + 1) ** last * ratio**i


def test_an_odd_number_of_labels_has_one_more_rare_label():
    assert profile_counts("step", 5, 30, 10) == [30, 30, 3, 3, 3]


@given(
    st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 6), min_size=5, max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_the_first_of_each_label_stay_in_the_old_order(labels, counts):
    wanted = []
    seen = [0] * 5
    for i, label in enumerate(labels):
        if seen[label] < counts[label]:
            wanted.append(i)
        seen[label] += 1
    assert first_of_each(torch.tensor(labels, dtype=torch.int32), counts).tolist() == wanted


def test_a_profile_thins_training_and_leaves_the_test_alone():
    labels = [2, 1, 0, 0, 1, 2, 1, 0, 2, 0, 1, 2]
    data = data_of(labels, 3)
    thin = long_tail(data, "exp", 4)
    assert thin.train.labels.values.tolist() == [2, 1, 0, 0, 1, 0, 0]
    kept = [0, 1, 2, 3, 4, 7, 9]
    assert torch.equal(thin.train.features, data.train.features[kept])
    assert thin.train.rows.tolist() == kept
    assert thin.test is data.test
    assert (thin.name, thin.digest) == ("few-exp4", "d-exp4")
    assert thin.notes[-1].endswith("7 of 12 stay for training.")
    assert long_tail(data, "step", 4).train.labels.values.tolist() == [2, 1, 0, 0, 0, 0]


def test_thinned_images_are_mapped_from_the_cache(tmp_path):
    thin = long_tail(data_of([0, 0, 0, 1, 1, 1], 2), "exp", 3)
    assert thin.train.features.untyped_storage().nbytes() == 4 * 12
    stored = [
        path for path in (tmp_path / ".cache").glob("*/images") if path.stat().st_size == 4 * 12
    ]
    assert len(stored) == 1
    assert stored[0].read_bytes() == thin.train.features.numpy().tobytes()


def test_files_are_listed_again_and_not_copied(tmp_path):
    thin = long_tail(data_of([0, 0, 1, 1], 2, files=True), "step", 2)
    assert thin.train.features.paths == ("0.jpg", "1.jpg", "2.jpg")
    assert not list((tmp_path / ".cache").glob("*/images"))


def test_what_cannot_be_thinned_is_reported():
    balanced = data_of([0, 1] * 4, 2)
    with pytest.raises(
        HeadtailError,
        match=r"`imbalance` of 5 leaves the rarest label without an image.*`imbalance=4` or less",
    ):
        long_tail(balanced, "exp", 5)
    with pytest.raises(HeadtailError, match=r"`imbalance` must be at least 1, but got 0.5"):
        long_tail(balanced, "exp", 0.5)
    with pytest.raises(
        HeadtailError,
        match=r"needs 2 images of label 1, but there are 1. Choose a larger `imbalance`",
    ):
        long_tail(data_of([0, 0, 0, 0, 1], 2), "exp", 2)
    plain = Points(torch.zeros(2, 5), Ragged.from_lists([[0], [1]]), 2)
    with pytest.raises(
        HeadtailError,
        match=r"`profile='exp'` needs images with one label each, which `plain` lacks",
    ):
        long_tail(DataSet("plain", plain, plain), "exp", 2)


def test_an_unknown_profile_is_refused(request):
    if request.config.getoption("--shapes"):
        pytest.skip("under --shapes the annotations speak first")
    with pytest.raises(
        HeadtailError, match=r"`profile` must be one of 'exp', 'step', but got 'linear'"
    ):
        profile_counts("linear", 2, 2, 2)


@pytest.mark.skipif(
    not TINY.exists(),
    reason=f"Tiny-ImageNet-32 is not in {TINY}; set HEADTAIL_DATA to the folder above it",
)
def test_tiny_imagenet_32_has_both_profiles():
    for profile, number in {"exp": 21_549, "step": 50_500}.items():
        data = load(TINY, Reading(profile=profile))
        assert (len(data.train), len(data.test), data.train.image_size) == (
            number,
            10_000,
            (32, 32),
        )
        message = (
            f"These are the {number:,} training images of Tiny-ImageNet-32-LT {profile}, with "
            "the counts known for this set."
        )
        assert data.notes[-1] == message
