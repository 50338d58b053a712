"""Histories hold sequences once, and give the bags that were once written per point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtail import HeadtailError
from headtail.core.targets import Ragged
from headtail.data import histories as module
from headtail.data.facts import facts_of, task_of
from headtail.data.histories import Histories
from headtail.data.points import DataSet, Points
from headtail.data.slices import data_slices


def bag_by_definition(prefix, last):
    """Columns and values of one bag, summed item by item in float64, the oldest occurrence last."""
    steps = {}
    for i, item in enumerate(reversed(prefix), start=1):
        if i <= last and item >= 0:
            steps.setdefault(item, []).append(1 / i)
    columns = sorted(steps)
    return columns, [np.float32(np.add.reduce(steps[item])) for item in columns]


def histories(lengths, last=4, num_columns=6, seed=0):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(-1, num_columns, n).tolist() for n in lengths]
    ends = [(row, end) for row, n in enumerate(lengths) for end in range(n + 1)]
    row, end = torch.tensor(ends).T
    items = torch.tensor([item for sequence in sequences for item in sequence]).int()
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    return Histories(items, offsets, row, end, last, num_columns), sequences


@pytest.mark.parametrize("last", [1, 4, 30])
@pytest.mark.parametrize("at_once", [1 << 20, 5])
def test_bags_are_those_of_the_definition_to_the_last_bit(last, at_once, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    some, sequences = histories([5, 0, 1, 17, 3], last)
    bag = some.bag()
    assert (len(bag), bag.num_columns, bag.columns.dtype) == (len(some), 6, torch.int32)
    for i in range(len(some)):
        columns, values = bag_by_definition(sequences[some.row[i]][: some.end[i]], last)
        own = slice(bag.offsets[i], bag.offsets[i + 1])
        assert bag.columns[own].tolist() == columns
        assert bag.values[own].tolist() == values


@pytest.mark.parametrize("length", [1, 3, 20])
def test_a_window_holds_the_latest_known_items_in_order(length):
    some, sequences = histories([5, 0, 1, 17, 3])
    for i, row in enumerate(some.window(length).tolist()):
        prefix = sequences[some.row[i]][: some.end[i]][-length:]
        known = [item for item in prefix if item >= 0]
        assert row == known + [-1] * (length - len(known))


def test_points_are_selected_without_a_copy_of_the_sequences():
    some, _ = histories([5, 3])
    ids = torch.tensor([7, 0, 7])
    picked = some.rows(ids)
    assert picked.items is some.items
    assert len(picked) == 3
    assert torch.equal(picked.bag().to_dense(), some.bag().to_dense()[ids])
    assert torch.equal(picked.to("cpu").window(9), some.window(9)[ids])


def test_no_sequence_at_all_gives_empty_windows():
    none = Histories(torch.empty(0).int(), torch.tensor([0, 0]), *torch.zeros(2, 1).long(), 3, 4)
    assert none.window(2).tolist() == [[-1, -1]]
    assert none.bag().offsets.tolist() == [0, 0]


def test_points_of_other_sizes_are_refused():
    with pytest.raises(
        HeadtailError, match=r"`row` has 2 points, but `end` has 1. Make them equal"
    ):
        Histories(
            torch.zeros(3).int(),
            torch.tensor([0, 3]),
            *(torch.zeros(n).long() for n in (2, 1)),
            3,
            4,
        )


def test_points_of_histories_are_selected_counted_and_recognised_as_sparse():
    some, _ = histories([5, 3])
    points = Points(some, Ragged.from_lists([[0]] * len(some)), 6)
    assert (points.num_features, points.image_size, len(points)) == (6, None, 10)
    few = points.select(torch.tensor([2, 9]))
    assert few.features.end.tolist() == [2, 3]
    assert torch.equal(few.as_bags().features.to_dense(), some.bag().to_dense()[[2, 9]])
    data = DataSet("d", points, few)
    assert task_of(data) == "retrieval"
    facts = facts_of(data, data_slices(data))
    assert facts["features_per_point"] == (0 + 1 + 2 + 3 + 4 + 4 + 0 + 1 + 2 + 3) / 10
