"""Work on whole tables, some rows at a time."""

from __future__ import annotations

import pytest
import torch

from headtail.device import parts
from tests.device.largest import LargestTensor


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 3), (500, 16), (9,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_all_rows_in_order_and_no_larger_than_asked(shape, dtype, monkeypatch):
    monkeypatch.setattr(parts, "PART", 640)
    table = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    rows = [table[part] for part in parts.parts(table)]
    assert torch.cat([table[:0], *rows]).equal(table)
    assert all(0 < part.nbytes <= 640 for part in rows)


def test_a_row_larger_than_a_part_is_a_part(monkeypatch):
    monkeypatch.setattr(parts, "PART", 8)
    assert len(list(parts.parts(torch.zeros(3, 100)))) == 3


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("row", [0, 250, 499])
def test_a_number_that_is_not_finite_is_found_in_every_part(wrong, row, monkeypatch):
    monkeypatch.setattr(parts, "PART", 640)
    table = torch.zeros(500, 16)
    assert parts.all_finite(table)
    table[row, 5] = wrong
    assert not parts.all_finite(table)


def test_looking_for_them_allocates_no_more_than_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART", 640)
    table = torch.nn.Parameter(torch.zeros(500, 16))
    with LargestTensor() as largest:
        assert parts.all_finite(table)
    assert largest.bytes <= 640


def test_a_number_is_a_table_of_one_row():
    assert parts.all_finite(torch.tensor(1.0))
    assert not parts.all_finite(torch.tensor(torch.nan))
