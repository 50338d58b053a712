"""Labels, slices and targets."""

from __future__ import annotations

import pytest
import torch

from headtail import HeadtailError, Labels, Ragged, Slices
from headtail.core.targets import Pairs


def test_the_prior_is_counts_over_their_sum_in_float64():
    labels = Labels.from_counts([70, 20, 10])
    assert labels.prior.dtype == torch.float64
    assert labels.prior.tolist() == [0.7, 0.2, 0.1]
    assert labels.log_prior(torch.tensor([2, 0])).exp().tolist() == pytest.approx(
        [0.1, 0.7], rel=1e-15
    )


def test_unseen_labels_have_no_prior_unless_smoothing_is_asked_for():
    assert Labels.from_counts([3, 0]).prior.tolist() == [1.0, 0.0]
    smoothed = Labels.from_counts([3, 0], smoothing=0.5)
    assert smoothed.prior.tolist() == [3.5 / 4, 0.5 / 4]
    assert smoothed.log_frequency(torch.tensor(1)) == -torch.inf, (
        "what batches hold is never smoothed"
    )
    assert smoothed.never_seen == 1


def test_a_prior_of_1e_minus_12_keeps_its_digits():
    labels = Labels.from_counts([10**12 - 1, 1])
    assert labels.log_prior(torch.tensor(1)).item() == pytest.approx(-27.631021115928547, rel=1e-15)


@pytest.mark.parametrize(
    "target",
    [
        torch.tensor([0, 2, 2, 3, -100]),
        torch.tensor([[0, 2], [2, -100], [3, -100]]),
        Ragged.from_lists([[0, 2], [], [2, 3]]),
        torch.nested.nested_tensor(
            [torch.tensor([0, 2]), torch.tensor([2, 3])], layout=torch.jagged
        ),
        torch.tensor([[True, False, True, False], [False, False, True, True]]),
    ],
    ids=["dense", "padded", "ragged", "nested", "multi-hot"],
)
def test_counts_are_the_same_from_every_form_of_targets(target):
    assert Labels.from_targets(target, num_labels=4).counts.tolist() == [1, 0, 2, 1]


def test_streamed_counts_equal_counts_at_once():
    target = torch.randint(0, 7, (100,))
    at_once = Labels.from_targets(target, num_labels=7)
    assert torch.equal(Labels.from_batches(target.split(9), num_labels=7).counts, at_once.counts)
    grown = Labels.from_targets(target[:50], num_labels=7).update(target[50:])
    assert torch.equal(grown.counts, at_once.counts)


def test_growing_keeps_old_ids_and_smoothing():
    grown = Labels.from_counts([5, 1], smoothing=1).grow([2, 9])
    assert grown.counts.tolist() == [5, 1, 2, 9]
    assert grown.smoothing == 1


def test_slices_by_count_follow_the_paper_s_thresholds():
    slices = Labels.from_counts([100, 99, 20, 19, 0]).slices()
    assert slices.of_label.tolist() == [0, 1, 1, 2, 2]


def test_cifar_100_lt_exp_has_35_head_35_torso_and_30_tail_classes():
    counts = [int(500 * 0.01 ** (i / 99)) for i in range(100)]
    assert sum(counts) == 10_847
    assert Labels.from_counts(counts).slices().sizes == {"head": 35, "torso": 35, "tail": 30}


def test_slices_by_mass_hold_their_share_and_never_split_equal_counts():
    slices = Labels.from_counts([4, 4, 4, 4, 4, 4]).slices_by_mass()
    assert slices.sizes == {"head": 6, "torso": 0, "tail": 0}
    slices = Slices.by_mass(torch.tensor([50, 30, 10, 5, 5, 0]), head=0.5, torso=0.3)
    assert slices.of_label.tolist() == [0, 1, 2, 2, 2, 2]


def test_pairs_know_their_example_and_what_is_padding():
    pairs = Pairs.of(torch.tensor([[2, 1], [3, -1]]), ignore_index=-1)
    assert pairs.example is not None
    assert pairs.example.tolist() == [0, 0, 1, 1]
    assert pairs.ignored.tolist() == [False, False, False, True]
    assert pairs.label.tolist() == [2, 1, 3, 2], (
        "padding borrows a label that is in the batch anyway"
    )


def test_ids_beyond_float32_s_integers_stay_themselves():
    """Ids through float32 are wrong above 16,777,216."""
    big = 2**24 + 1
    assert Pairs.of(torch.tensor([big])).label.item() == big
    with pytest.raises(HeadtailError, match="Floats lose ids"):
        Pairs.of(torch.tensor([float(big)]))
