"""A few test points with what a model answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.examples import examples_of

DATA = load("synthetic:points=60,test=20,features=80,labels=12")
TOP = torch.arange(12).expand(20, 12)


def test_every_slice_has_its_points_and_none_is_shown_twice():
    slices = data_slices(DATA)
    found = examples_of(TOP, DATA, slices)
    assert [example["slice"] for example in found] == ["head"] * 2 + ["torso"] * 2 + ["tail"] * 2
    points = [example["point"] for example in found]
    assert len(set(points)) == len(points)
    offsets = DATA.test.labels.offsets.tolist()
    for example in found:
        start, end = offsets[example["point"] : example["point"] + 2]
        right = DATA.test.labels.values[start:end].tolist()
        assert example["right"] == [str(label) for label in right]
        assert any(bool(getattr(slices, example["slice"])[label]) for label in right)
        assert example["answers"] == ["0", "1", "2", "3", "4"]


def test_labels_have_their_names_and_places_without_a_label_are_left_out():
    named = replace(DATA, label_names=[f"shoe {i}" for i in range(12)])
    top = torch.full((20, 5), -1)
    top[:, 0] = 7
    found = examples_of(top, named, data_slices(named))
    assert all(example["answers"] == ["shoe 7"] for example in found)
    assert all(name.startswith("shoe ") for example in found for name in example["right"])


@pytest.mark.parametrize("rows", [None, torch.arange(20) + 100])
def test_a_point_is_named_by_its_row_in_the_source(rows: torch.Tensor | None):
    moved = replace(DATA, test=replace(DATA.test, rows=rows))
    first = examples_of(TOP, moved, data_slices(moved))[0]["point"]
    plain = examples_of(TOP, replace(DATA, test=replace(DATA.test, rows=None)), data_slices(DATA))
    assert first == plain[0]["point"] + (0 if rows is None else 100)
