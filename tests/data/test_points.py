"""Points keep what belongs to them when they are selected or joined."""

from __future__ import annotations

import pytest
import torch

from headtail import HeadtailError, Ragged
from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points


def lists(ragged: Ragged | None) -> list[list[int]]:
    assert ragged is not None
    return [part.tolist() for part in ragged.values.tensor_split(ragged.offsets[1:-1])]


def points(rows: list[int], known: list[list[int]]) -> Points:
    n = len(rows)
    bag = Bag(torch.arange(n + 1), torch.zeros(n).int(), torch.ones(n), 1)
    labels = Ragged.from_lists([own[:1] for own in known])
    ragged = Ragged.from_lists(known)
    return Points(bag, labels, 9, rows=torch.tensor(rows), seen=ragged, known=ragged)


def test_selected_points_keep_what_they_have_seen_and_their_known_answers():
    chosen = points([0, 1, 2], [[1, 2], [], [3]]).select(torch.tensor([2, 0, 2]))
    assert lists(chosen.known) == lists(chosen.seen) == [[3], [1, 2], [3]]


def test_the_rows_of_a_test_part_keep_their_known_answers_in_the_order_of_the_source():
    test = points([0, 3], [[5, 6], [7]])
    data = DataSet("d", test, test, unlabelled=points([2, 1], [[1], [2, 3]]))
    assert lists(data.asked.known) == [[5, 6], [2, 3], [1], [7]]


@pytest.mark.parametrize("name", ["seen", "known"])
def test_lists_of_other_points_are_refused(name):
    with pytest.raises(HeadtailError, match=rf"`features` has 2 points, but `{name}` has 1"):
        Points(torch.eye(2), Ragged.from_lists([[0], [1]]), 2, **{name: Ragged.from_lists([[0]])})
