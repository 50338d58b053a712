"""The page of the first edition shows what its rows say."""

from __future__ import annotations

import first_edition_tables as tables
import pytest
from evidence import LEAN
from study_tables import read_table


@pytest.fixture(scope="module")
def values():
    return tables.read_values()


def test_differences_are_paired_by_seed_and_the_lean_is_tail_minus_head():
    values = {
        ("set", scheme, "recall@10", slice_): of
        for scheme, slice_, of in (
            ("a", "head", [0.5, 0.6]),
            ("a", "tail", [0.1, 0.3]),
            ("b", "head", [0.4, 0.4]),
            ("b", "tail", [0.1, 0.1]),
        )
    }
    data = tables.BySeed(values, "set")
    assert list(data.chosen) == ["a", "b"]
    head = data.difference("a", "b", "recall@10", "head")
    assert (head.difference, head.seeds) == (pytest.approx(0.15), 2)
    assert data.by_seed("a", "recall@10", LEAN) == pytest.approx([-0.4, -0.3])
    assert data.difference("a", "b", "recall@10", LEAN).difference == pytest.approx(-0.05)


def test_verdicts_of_the_rows_are_of_the_three_data_sets(values):
    lines = tables.verdicts_of(values)
    assert {line["dataset"] for line in lines} == set(tables.SETS)
    [boost] = [
        line
        for line in lines
        if (line["claim"], line["dataset"]) == ("constant against softmax", "delicious")
    ]
    assert boost["verdict"] == "holds"


def test_committed_orders_are_those_of_the_rows(values):
    lines = tables.orders(values, read_table(tables.LEANS))
    assert read_table(tables.ORDERS) == lines
    [delicious] = [x for x in lines if (x["dataset"], x["group"]) == ("delicious", "all")]
    assert int(delicious["schemes"]) == 9
    flipped = [x | {"lean": str(-float(x["lean"]))} for x in read_table(tables.LEANS)]
    assert float(tables.orders(values, flipped)[0]["correlation"]) == -float(
        lines[0]["correlation"]
    )
