"""Every target of every sequence is predicted once per epoch, from the items before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtail import HeadtailError
from headtail.core.targets import Ragged
from headtail.data.histories import Histories
from headtail.data.points import Points
from headtail.data.sequence_batches import SequenceBatches
from headtail.training.resident_sequences import ResidentSequences, sequences_size


def points(lengths, unknown=0.0, seed=0, first=1):
    """All prefixes of sequences of different items, as points in a random order."""
    rng = np.random.default_rng(seed)
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    items = torch.arange(int(offsets[-1])).int()
    ends = [(row, end) for row, n in enumerate(lengths) for end in range(first, n)]
    row, end = torch.tensor(ends)[torch.from_numpy(rng.permutation(len(ends)))].T
    labels = items[offsets[row] + end]
    if unknown:
        items = items.masked_fill(torch.from_numpy(rng.random(len(items)) < unknown), -1)
    features = Histories(items, offsets, row, end, 10, len(items))
    return Points(features, Ragged(labels, torch.arange(len(labels) + 1)), len(items))


def predicted(batches, epoch):
    """(window, target) of every prediction of an epoch, from the items of the window on."""
    for ids in batches.order(epoch):
        batch = batches.take(ids)
        width = batch.features.shape[1]
        for at, label in zip(batch.row.tolist(), batch.target.tolist(), strict=True):
            window = batch.features[at // width, : at % width + 1]
            yield window.tolist(), label


@pytest.mark.parametrize("length", [1, 4, 50])
@pytest.mark.parametrize("size", [1, 7])
def test_every_target_is_predicted_once_from_the_items_right_before_it(length, size):
    some = points([5, 1, 0, 2, 23, 3, 9])
    batches = SequenceBatches(some, size, 0, length=length)
    assert batches.steps == len(some) // size
    found = list(predicted(batches, epoch=0))
    targets = [label for _, label in found]
    assert len(set(targets)) == len(targets) == batches.steps * size
    begins = some.features.offsets.tolist()
    for window, label in found:
        assert 0 < len(window) <= length
        assert window == list(range(label - len(window), label)), "items are numbered in order"
        begin = max(start for start in begins if start <= label)
        assert window[0] >= begin
    # Windows are cut from the end of a sequence, so that its last targets have the longest.
    longest = {label: len(window) for window, label in found}
    if size == 1:
        assert longest[begins[5] - 1] == min(length, 22)


def test_epochs_differ_and_follow_from_seed_and_number():
    some = points([5, 2, 8, 3, 9])
    one, same, other = (SequenceBatches(some, 4, seed, length=3) for seed in (0, 0, 1))
    assert torch.equal(one.shuffled(2), same.shuffled(2))
    assert not torch.equal(one.shuffled(2), one.shuffled(3))
    assert not torch.equal(one.shuffled(2), other.shuffled(2))
    rest = list(one.order(2, start=3))
    assert all(torch.equal(a, b) for a, b in zip(rest, list(one.order(2))[3:], strict=True))


def test_only_the_points_to_train_on_are_predicted_but_all_items_are_read():
    some = points([6, 6])
    among = torch.tensor([0, 3, 5])
    batches = SequenceBatches(some, 1, 0, length=10, among=among)
    found = {label: window for window, label in predicted(batches, 0)}
    assert set(found) == set(some.labels.values[among].tolist())
    for label, window in found.items():
        assert window == list(range(0 if label < 6 else 6, label))


def test_unknown_items_are_left_out_and_targets_behind_none_too():
    some = points([9, 30, 4], unknown=0.4, first=0)
    batches = SequenceBatches(some, 1, 0, length=5)
    found = {label: window for window, label in predicted(batches, 0)}
    items = some.features.items.tolist()
    for begin, n in ((0, 9), (9, 30), (39, 4)):
        for end in range(n):
            last = (n - 1) - (n - 1 - end) // 5 * 5
            seen = [i for i in items[begin + max(last - 5, 0) : begin + end] if i >= 0]
            assert found.get(begin + end, []) == seen


def test_without_anything_to_predict_there_is_nothing_to_learn():
    with pytest.raises(HeadtailError, match="No training point has both a label and an item"):
        SequenceBatches(points([1, 1], first=0), 2, 0, length=3)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_a_resident_batch_has_a_fixed_shape_and_predicts_the_same(size):
    some = points([5, 1, 2, 23, 3, 9, 2, 2, 2], unknown=0.1)
    batches = SequenceBatches(some, size, 0, length=6)
    resident = ResidentSequences(batches, torch.device("cpu"), epochs=3)
    assert sequences_size(batches) == sum(
        tensor.element_size() * tensor.numel()
        for tensor in (resident.items, resident.window_of, resident.place, resident.label)
    )
    widest = 0
    for epoch in range(3):
        for ids in batches.order(epoch):
            small = batches.take(ids)
            batch = resident.take(*resident.look_up(ids))
            widest = max(widest, len(small.features))
            assert batch.features.shape == (resident.most, 6)
            width = small.features.shape[1]
            assert torch.equal(batch.target, small.target)
            assert torch.equal(batch.row // 6, small.row // width)
            assert torch.equal(batch.row % 6, small.row % width)
            assert torch.equal(batch.features[: len(small.features), :width], small.features)
            rest = batch.features[len(small.features) :]
            assert torch.equal(rest, batch.features[:1].expand_as(rest)), "borrowed"
    assert widest == resident.most
