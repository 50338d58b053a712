"""Facts about data, against counting by hand."""

from __future__ import annotations

import statistics

import pytest
import torch

from headtail import Ragged, Slices
from headtail.data.bag import Bag
from headtail.data.facts import facts_of, gini, label_counts
from headtail.data.image_files import ImageFiles
from headtail.data.points import DataSet, Points

LISTS = [[0, 1], [0], [0, 2], [0, 1], [0, 3], [], [0, 4, 1]]


def data_of(lists, num_labels, features=None):
    features = torch.ones(len(lists), 5) if features is None else features
    points = Points(features, Ragged.from_lists(lists), num_labels)
    return DataSet("tiny", points, points, notes=("a note",), digest="digest")


def mean_difference(counts):
    """Gini's coefficient as half the mean absolute difference over the mean."""
    pairs = [abs(a - b) for a in counts for b in counts]
    return statistics.mean(pairs) / (2 * statistics.mean(counts))


@pytest.mark.parametrize("counts", [[1, 2, 3, 4], [7], [0, 0, 5], [100, 3, 3, 1, 0, 12, 8]])
def test_gini_is_half_the_relative_mean_difference(counts):
    assert gini(torch.tensor(counts)) == pytest.approx(mean_difference(counts), abs=1e-12)


def test_facts_are_what_counting_gives():
    data = data_of(LISTS, num_labels=6)
    counts = [sum(label in row for row in LISTS) for label in range(6)]
    assert label_counts(data).tolist() == counts == [6, 3, 1, 1, 1, 0]
    slices = Slices(torch.tensor([0, 1, 1, 2, 2, 2]), "by hand")
    facts = facts_of(data, slices)
    assert (
        facts["train_points"],
        facts["num_pairs"],
        facts["num_features"],
        facts["features_per_point"],
    ) == (7, 12, 5, 5.0)
    assert (facts["most"], facts["median"], facts["least"], facts["never_seen"]) == (
        6,
        statistics.median(counts),
        0,
        1,
    )
    assert facts["imbalance"] == 6.0
    assert facts["labels_per_point"] == pytest.approx(12 / 7)
    assert facts["gini"] == pytest.approx(mean_difference(counts))
    assert facts["slices"]["sizes"] == {"head": 1, "torso": 2, "tail": 3}
    assert facts["slices"]["pairs"] == {"head": 6, "torso": 4, "tail": 2}
    assert facts["slices"]["rarest"] == {"head": 6, "torso": 1, "tail": 0}
    assert facts["slices"]["last_rank"] == {"head": 1, "torso": 5, "tail": 6}
    assert facts["curve"] == [
        [rank, count] for rank, count in enumerate(sorted(counts, reverse=True), start=1)
    ]
    assert (facts["notes"], facts["digest"]) == (["a note"], "digest")


def test_the_median_of_an_even_number_of_labels_lies_between_two():
    assert facts_of(data_of([[0, 1], [0]], 2), Slices(torch.tensor([0, 2]), ""))["median"] == 1.5


def test_an_empty_slice_has_no_rarest_label_and_sparse_features_are_counted():
    bag = Bag(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 0, 1, 2]).int(), torch.ones(5), 3)
    data = data_of([[0], [1], [0]], 2, bag)
    facts = facts_of(data, Slices(torch.tensor([0, 0]), "all head"))
    assert facts["features_per_point"] == pytest.approx(5 / 3)
    assert facts["slices"]["rarest"] == {"head": 1}
    assert facts["slices"]["pairs"] == {"head": 3, "torso": 0, "tail": 0}


def test_images_have_a_size_and_other_points_none():
    small = torch.zeros(7, 3, 4, 6, dtype=torch.uint8)
    large = ImageFiles(("x.jpg",) * 7)
    slices = Slices(torch.zeros(6, dtype=torch.int64), "all head")
    found = [facts_of(data_of(LISTS, 6, features), slices) for features in (small, large, None)]
    assert [facts["image_size"] for facts in found] == [[4, 6], [224, 224], None]
    assert [facts["num_features"] for facts in found] == [72, 150_528, 5]
    assert [facts["features_per_point"] for facts in found] == [72, 150_528, 5]


def test_large_counts_keep_their_digits():
    train = Points(
        torch.zeros(0, 1),
        Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
        3,
    )
    data = DataSet("large", train, train)
    counts = torch.tensor([16_777_217 * 3, 3, 3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headtail.data.facts.label_counts", lambda _: counts)
        facts = facts_of(data, Slices.by_mass(counts))
    assert facts["imbalance"] == 16_777_217.0  # beyond what float32 holds


def test_the_curve_runs_from_the_first_rank_to_the_last_in_about_300_points():
    counts = torch.arange(5000, 0, -1)
    train = Points(
        torch.zeros(0, 1),
        Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
        5000,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headtail.data.facts.label_counts", lambda _: counts)
        curve = facts_of(DataSet("long", train, train), Slices.by_mass(counts))["curve"]
    assert curve[0] == [1, 5000]
    assert curve[-1] == [5000, 1]
    assert 200 <= len(curve) <= 300
    assert all(count == 5001 - rank for rank, count in curve)
