"""Batches: every pair once an epoch, the same for the same seed, and no point encoded twice."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from headtail.core.labels import Labels
from headtail.core.targets import Ragged
from headtail.data.bag import Bag, Picked
from headtail.data.batches import Batches, TrainingBatch
from headtail.data.points import Points
from headtail.errors import HeadtailError
from headtail.training.build_model import build_model
from headtail.training.config import SettledRun
from tests.training.test_train import small_data

POINTS = small_data().train


def pairs_of(points: Points) -> list[tuple[int, int]]:
    """(point, label), the slow way."""
    offsets = points.labels.offsets.tolist()
    values = points.labels.values.tolist()
    return [(i, label) for i in range(len(points)) for label in values[offsets[i] : offsets[i + 1]]]


def message(batches: Batches, ids: torch.Tensor) -> list[tuple[int, int]]:
    """The (point, label) pairs of a batch; points are known by a feature that is their number."""
    batch = batches.take(ids)
    features = (
        batch.features.gathered().to_dense()
        if isinstance(batch.features, Picked)
        else batch.features
    )
    number = features[:, 0].long().tolist()
    if isinstance(batch.target, Ragged):
        offsets = batch.target.offsets.tolist()
        values = batch.target.values.tolist()
        return [
            (number[i], label)
            for i in range(len(number))
            for label in values[offsets[i] : offsets[i + 1]]
        ]
    row = range(len(number)) if batch.row is None else batch.row.tolist()
    return [(number[i], label) for i, label in zip(row, batch.target.tolist(), strict=True)]


def numbered(points: Points, sparse: bool) -> Points:
    """The same labels; the only feature of a point is its number."""
    dense = torch.arange(len(points), dtype=torch.float32)[:, None]
    bag = Bag(
        torch.arange(len(points) + 1), torch.zeros(len(points), dtype=torch.int32), dense[:, 0], 1
    )
    return Points(bag if sparse else dense, points.labels, points.num_labels)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
def test_every_pair_comes_once_an_epoch_but_for_a_remainder_smaller_than_a_batch(
    sparse, whole_points
):
    points = numbered(POINTS, sparse)
    batches = Batches(points, 7, seed=1, whole_points=whole_points)
    found = Counter(pair for ids in batches.order(epoch=0) for pair in message(batches, ids))
    everything = Counter(pairs_of(points))
    assert found <= everything
    missing = everything - found
    assert len({point for point, _ in missing} if whole_points else missing) < batches.size
    assert batches.steps == len(list(batches.order(epoch=0)))


def test_an_epoch_that_divides_evenly_leaves_nothing_out():
    points = numbered(POINTS, sparse=True)
    batches = Batches(points, points.num_pairs, seed=0)
    assert Counter(message(batches, next(batches.order(3)))) == Counter(pairs_of(points))


@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
def test_epochs_are_shuffled_differently_and_each_can_be_repeated_and_entered_anywhere(
    whole_points,
):
    batches = Batches(POINTS, 7, seed=1, whole_points=whole_points)
    again = Batches(POINTS, 7, seed=1, whole_points=whole_points)
    other = Batches(POINTS, 7, seed=2, whole_points=whole_points)
    first = torch.stack(list(batches.order(0)))
    assert torch.equal(first, torch.stack(list(again.order(0))))
    assert not torch.equal(first, torch.stack(list(batches.order(1))))
    assert not torch.equal(first, torch.stack(list(other.order(0))))
    assert torch.equal(first[3:], torch.stack(list(batches.order(0, start=3))))
    assert list(batches.order(0, start=batches.steps)) == []


def test_the_largest_seed_has_an_order_too():
    assert len(next(Batches(POINTS, 4, seed=2**63 - 1).order(epoch=10))) == 4


def test_a_point_with_several_pairs_in_a_batch_is_encoded_once_and_the_loss_stays_the_same():
    batches = Batches(POINTS, 60, seed=0)
    ids = next(batches.order(0))
    batch = batches.take(ids)
    assert batch.row is not None
    assert len(batch.features) < len(ids)
    model = build_model(
        SettledRun(dim=4, dropout=0.0, scheme="softmax"), Labels.zipf(12), POINTS.num_features
    )
    alone = TrainingBatch(POINTS.features.rows(batches.point_of[ids]), None, batch.target)
    assert len(alone.features) == len(ids)
    shared = model(batch)
    separate = model(alone)
    assert torch.allclose(shared, separate, rtol=1e-6)
    gradients = [
        torch.autograd.grad(loss, model.encoder.weight)[0].to_dense() for loss in (shared, separate)
    ]
    assert torch.allclose(*gradients, atol=1e-6)


def test_a_point_is_shared_even_if_there_are_as_many_pairs_as_points():
    points = Points(torch.eye(3), Ragged.from_lists([[0, 1], [1], []]), num_labels=2)
    batch = Batches(points, 3, seed=0).take(torch.tensor([0, 1, 2]))
    assert len(batch.features) == 2


def test_points_of_one_label_each_need_no_rows():
    points = Points(torch.eye(3), Ragged.from_lists([[0], [1], [0]]), num_labels=2)
    batch = Batches(points, 3, seed=0).take(torch.tensor([2, 0, 1]))
    assert batch.row is None
    assert torch.equal(batch.features, torch.eye(3)[[2, 0, 1]])


def test_whole_points_bring_all_their_labels_and_about_the_pairs_asked_for():
    batches = Batches(POINTS, 20, seed=0, whole_points=True)
    labels_a_point = POINTS.num_pairs / len(POINTS)
    assert batches.size == round(20 / labels_a_point)
    ids = next(batches.order(0))
    target = batches.take(ids).target
    assert isinstance(target, Ragged)
    offsets = POINTS.labels.offsets
    wanted = [POINTS.labels.values[offsets[i] : offsets[i + 1]].tolist() for i in ids.tolist()]
    assert [
        target.values[a:b].tolist()
        for a, b in zip(target.offsets[:-1], target.offsets[1:], strict=True)
    ] == wanted


@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
def test_only_the_points_named_are_used(whole_points):
    points = numbered(POINTS, sparse=True)
    among = torch.tensor([3, 5, 8, 13, 21])
    batches = Batches(points, 2, seed=0, among=among, whole_points=whole_points)
    used = {point for ids in batches.order(0) for point, _ in message(batches, ids)}
    assert used <= set(among.tolist())
    assert len(used) >= 4


def test_features_are_gathered_and_never_held_twice():
    batches = Batches(POINTS, 16, seed=0)
    assert batches.points is POINTS
    held = sum(value.numel() for value in vars(batches).values() if isinstance(value, torch.Tensor))
    assert held == 2 * POINTS.num_pairs, "a point for each pair, and the pairs that are used"


def test_a_batch_larger_than_the_data_is_the_data():
    batches = Batches(POINTS, 10**6, seed=0)
    assert batches.steps == 1
    assert batches.size == POINTS.num_pairs


@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
def test_points_without_labels_take_no_place_in_a_batch(whole_points):
    points = Points(torch.eye(4), Ragged.from_lists([[], [0, 1], [], [1]]), num_labels=2)
    batches = Batches(points, 10, seed=0, whole_points=whole_points)
    batch = batches.take(next(batches.order(0)))
    assert len(batch.features) == 2
    assert batches.size == (2 if whole_points else 3)


def test_points_without_any_label_are_refused():
    nothing = Points(torch.eye(2), Ragged.from_lists([[], []]), num_labels=3)
    with pytest.raises(HeadtailError, match="no labels at all"):
        Batches(nothing, 2, seed=0)
