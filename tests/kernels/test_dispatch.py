"""The switch between compiled kernels and plain PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import headtail as ht
from headtail.kernels.dispatch import (
    HAS_NUMBA,
    WORTH_COMPILING,
    bag_kernels,
    kernels_in_use,
    loss_kernels,
    row_kernels,
)

TABLE = torch.zeros(300, 128)
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")


def choices(table: torch.Tensor = TABLE) -> list[bool]:
    """Which kinds of kernels are chosen for a table."""
    chosen = loss_kernels(table, table), row_kernels(table, table.numel()), bag_kernels(table)
    return [kernels is not None for kernels in chosen]


@needs_numba
def test_the_switch_takes_effect_at_once_and_everywhere():
    assert choices() == [True, True, True]
    with ht.use_kernels(False):
        assert choices() == [False, False, False]
        with ht.use_kernels(True):
            assert choices() == [True, True, True]
        assert choices() == [False, False, False]
    assert choices() == [True, True, True]


@needs_numba
def test_the_switch_works_without_a_block():
    before = ht.use_kernels("off")
    try:
        assert choices() == [False, False, False]
    finally:
        before.__exit__(None, None, None)
    assert choices() == [True, True, True]


def test_the_mode_is_restored_after_an_error():
    before = kernels_in_use()
    with pytest.raises(ZeroDivisionError), ht.use_kernels(False):
        _ = 1 / 0
    assert kernels_in_use() == before


@needs_numba
def test_small_tables_are_updated_by_kernels_only_if_these_are_always_used():
    small = torch.zeros(4, 4)
    assert row_kernels(small, WORTH_COMPILING - 1) is None
    with ht.use_kernels("always"):
        assert row_kernels(small, WORTH_COMPILING - 1) is not None


@pytest.mark.parametrize(
    "table", [TABLE.double(), torch.zeros(128, 300).T], ids=["float64", "view"]
)
@pytest.mark.parametrize("mode", ["auto", "always"])
def test_kernels_are_not_chosen_for_other_dtypes_and_layouts(table, mode):
    with ht.use_kernels(mode):
        assert choices(table) == [False, False, False]


def test_a_loss_in_autocast_is_plain():
    with torch.autocast("cpu", torch.bfloat16):
        assert loss_kernels(TABLE, TABLE) is None


@pytest.mark.parametrize("mode", ["on", "", None, 2])
def test_an_unknown_mode_is_refused(mode):
    with pytest.raises(ht.HeadtailError, match="`mode`"):
        ht.use_kernels(mode)
    assert kernels_in_use() in ("auto", "always", "off")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("off", "off"), ("OFF", "off"), ("always", "always"), ("maybe", "`HEADTAIL_KERNELS`")],
)
def test_the_environment_sets_the_first_mode(value, wanted):
    code = """
from headtail.errors import HeadtailError
from headtail.kernels.dispatch import kernels_in_use
try:
    print(kernels_in_use())
except HeadtailError as error:
    print(error)
"""
    environment = os.environ | {"HEADTAIL_KERNELS": value}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert wanted in done.stdout
