"""No column, row or offset out of range reaches a compiled kernel, whatever door it comes in by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headtail import (
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    Ragged,
    RowSGD,
    Run,
    SampledSoftmaxLoss,
    Trainer,
    Uniform,
    compare,
    load,
    use_kernels,
)
from headtail.data.bag import Bag, Picked
from headtail.data.histories import Histories
from headtail.data.points import DataSet, Points
from headtail.data.readers.parse_lines import _parse
from headtail.data.readers.parsed import Room
from headtail.encoders import Bottleneck, Model
from headtail.encoders.items import ItemHead
from headtail.encoders.weighted_bag import weighted_bag
from headtail.evaluation.topk import top_labels
from tests.kernels.in_python import OUT, run_in_python, wrong

L = 7
D = 5
DIM = 4


@pytest.fixture(autouse=True)
def called(monkeypatch):
    called = run_in_python(monkeypatch)
    with use_kernels("always"):
        yield called


def bag(column: int = 4, offsets: tuple[int, ...] = (0, 2, 2, 5), dtype=torch.int32) -> Bag:
    columns = torch.tensor([0, 3, 1, 2, column], dtype=dtype)
    return Bag(torch.tensor(offsets), columns, torch.ones(5), D)


def encoder(**options) -> Bottleneck:
    return Bottleneck(D, DIM, sparse=True, **options)


def encoded(features: Bag | Picked, **options) -> Tensor:
    return encoder(**options)(features)


def encoded_after_decay(features: Bag) -> Tensor:
    bottleneck = encoder()
    optimizer = RowSGD(bottleneck.parameters(), lr=0.1, weight_decay=0.1)
    bottleneck(bag()).sum().backward()
    optimizer.step()
    return bottleneck(features)


def item_head(items: Bag) -> ItemHead:
    labels = Labels.from_counts([1, 1, 1])
    return ItemHead(labels, DIM, SampledSoftmaxLoss(Uniform(3, 2), Importance()), items)


def points(features: Bag | Histories, labels: tuple[int, ...] = (0, 1, 2)) -> Points:
    return Points(features, Ragged(torch.tensor(labels), torch.arange(4)), L)


def dataset(features: Bag | Histories, labels: tuple[int, ...] = (0, 1, 2)) -> DataSet:
    return DataSet("hand", points(features, labels), points(bag()), digest="hand")


def train(data: DataSet) -> None:
    run = Run(scheme="uniform:importance@3", epochs=1, dim=DIM, batch=3, validation=0)
    Trainer(run, data).fit()


def answer(features: Bag) -> None:
    head = LabelHead(Labels.zipf(L), DIM, SampledSoftmaxLoss(Uniform(L, 2), Importance()))
    top_labels(Model(encoder(), head), points(features), 2)


BAG_DOORS: dict[str, Callable[[Bag], object]] = {
    "weighted_bag": lambda bag: weighted_bag(bag, torch.randn(D, DIM), sparse=True),
    "weighted_bag of picked rows": lambda bag: weighted_bag(
        Picked(bag, torch.tensor([0, 2])), torch.randn(D, DIM), sparse=True
    ),
    "Bottleneck": encoded,
    "Bottleneck with dropout": lambda bag: encoded(
        Picked(bag, torch.tensor([0, 1, 2])), dropout=0.5
    ),
    "Bottleneck with dropout of features": lambda bag: encoded(bag, feature_dropout=0.5),
    "Bottleneck with weight decay": encoded_after_decay,
    "rows": lambda bag: bag.rows(torch.tensor([0, 2])),
    "a row of one that was copied": lambda bag: bag.to("cpu").rows(torch.tensor([2])),
    "features of items": lambda bag: item_head(bag).rows(torch.tensor([0, 2])),
    "evaluation": answer,
    "training": lambda bag: train(dataset(bag)),
}


@pytest.mark.parametrize("door", BAG_DOORS)
def test_a_right_bag_reaches_a_kernel_by_every_door(door, called):
    BAG_DOORS[door](bag())
    assert called


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize("door", BAG_DOORS)
def test_a_column_out_of_range_is_refused_by_every_door(door, number, dtype):
    bad = bag(wrong(number, D, dtype), dtype=dtype)
    with pytest.raises(HeadtailError, match="`columns` must hold columns from 0 to 4, but got"):
        BAG_DOORS[door](bad)


@pytest.mark.parametrize(
    "offsets",
    [(0, 4, 2, 5), (0, 2, 2, 6), (0, 2, 2, 4), (1, 2, 2, 5), (-5, 2, 2, 5), (0, 2**40, 2, 5)],
    ids=str,
)
@pytest.mark.parametrize("door", BAG_DOORS)
def test_offsets_that_do_not_rise_to_the_number_of_entries_are_refused(door, offsets):
    with pytest.raises(HeadtailError, match="`offsets` must rise from 0 to the number of values"):
        BAG_DOORS[door](bag(offsets=offsets))


@pytest.mark.parametrize(
    "part",
    [
        {"values": torch.ones(4)},
        {"values": torch.ones(5, dtype=torch.int64)},
        {"columns": torch.zeros(5)},
        {"columns": torch.zeros(5, 1, dtype=torch.int32)},
        {"offsets": torch.zeros(0, dtype=torch.int64)},
        {"offsets": torch.tensor([0.0, 5.0])},
    ],
    ids=[
        "few values",
        "whole values",
        "broken columns",
        "a matrix",
        "no offsets",
        "broken offsets",
    ],
)
def test_parts_of_a_bag_that_do_not_fit_each_other_are_refused(part):
    with pytest.raises(HeadtailError):
        weighted_bag(replace(bag(), **part), torch.randn(D, DIM), sparse=True)


def test_a_bag_without_rows_and_one_without_entries_are_right():
    none = torch.zeros(0, dtype=torch.int32)
    for offsets in ([0], [0, 0, 0]):
        empty = Bag(torch.tensor(offsets), none, torch.zeros(0), D)
        assert weighted_bag(empty, torch.randn(D, DIM), sparse=True).shape[0] == len(offsets) - 1


def test_a_bag_is_looked_at_once_and_again_after_it_was_written_to(monkeypatch):
    looks = []
    look = Bag._check_all
    monkeypatch.setattr(Bag, "_check_all", lambda bag: (looks.append(bag), look(bag)))
    changed = bag()
    for _ in range(3):
        changed.rows(torch.tensor([2, 0])).to("cpu").rows(torch.tensor([1]))
    assert len(looks) == 1
    changed.columns[0] = 10**6
    with pytest.raises(HeadtailError, match="got 1000000"):
        changed.rows(torch.tensor([0]))


def test_features_of_items_are_looked_at_again_after_they_were_loaded():
    head = item_head(bag())
    state = head.state_dict()
    state["item_columns"] = torch.tensor([0, 3, 1, 2, 10**6], dtype=torch.int32)
    head.load_state_dict(state)
    with pytest.raises(HeadtailError, match="`columns` must hold columns from 0 to 4"):
        head.rows(torch.tensor([2]))


@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize(
    "door",
    [
        lambda ids: bag().rows(ids),
        lambda ids: weighted_bag(Picked(bag(), ids), torch.randn(D, DIM), sparse=True),
        lambda ids: encoded(Picked(bag(), ids), dropout=0.5),
        lambda ids: encoded(Picked(bag(), ids), feature_dropout=0.5),
    ],
    ids=["rows", "weighted_bag", "fused", "gathered"],
)
def test_a_row_that_a_bag_does_not_have_is_refused(door, number):
    with pytest.raises(HeadtailError, match="`ids` must hold rows of the bag from 0 to 2, but"):
        door(torch.tensor([1, wrong(number, 3)]))


@pytest.mark.parametrize("number", OUT)
def test_a_label_or_an_item_out_of_range_is_refused_before_training(number, called, tmp_path):
    out = wrong(number, L)
    items = torch.tensor([0, 1, 2, out])
    ends = torch.tensor([1, 2, 3])
    histories = Histories(items, torch.tensor([0, 4]), torch.zeros(3).long(), ends, 3, D)
    at = {"data": dataset(bag(), (0, 1, out)), "items": dataset(histories)}
    for data in at.values():
        if data is at["items"] and number == "negative":
            continue  # an unknown item
        with pytest.raises(HeadtailError, match="must hold"):
            train(data)
        with pytest.raises(HeadtailError, match="must hold"):
            compare(data, ["softmax"], out=tmp_path / "comparison")
    assert not called


@pytest.mark.parametrize(
    "part",
    [
        {"row": torch.tensor([0, 0, 1])},
        {"row": torch.tensor([0, -1, 0])},
        {"end": torch.tensor([1, 2, 5])},
        {"end": torch.tensor([1, -2, 3])},
        {"offsets": torch.tensor([0, 9])},
        {"num_columns": 2**31 + 1},
    ],
    ids=str,
)
def test_positions_outside_their_sequence_are_refused_before_training(part):
    items = torch.tensor([0, 1, 2, 3])
    ends = torch.tensor([1, 2, 3])
    histories = Histories(items, torch.tensor([0, 4]), torch.zeros(3).long(), ends, 3, D)
    points(histories).check()
    histories.rows(torch.arange(0)).check()
    with pytest.raises(HeadtailError):
        train(dataset(replace(histories, **part)))


def test_a_sparse_matrix_with_a_column_out_of_range_is_refused_by_load():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(np.eye(4, dtype=np.float32))
    matrix.indices[2] = 10**6
    with pytest.raises(HeadtailError, match="`columns` must hold columns from 0 to 3"):
        load((matrix, np.array([0, 1, 0, 1])))


TOKENS = st.sampled_from([b"0", b"7", b"12", b",", b":", b" ", b"\n", b"#", b".", b"e", b"-", b"q"])


@given(st.lists(TOKENS | st.binary(max_size=3) | st.just(b"qid:1 0:1"), max_size=40))
@example([b"1,1,1,1"])
@example([b"0:1 1:1 2:1 3:1"])
@example([b"\n"] * 9)
@example([b"q"])
@settings(max_examples=300, deadline=None)
def test_the_parser_of_lines_stays_inside_its_arrays_whatever_the_text(parts):
    text = b"".join(parts) + b"\n"
    with np.errstate(all="ignore"):
        _parse(text, 10, 10, Room.of(len(text)))  # IndexError
