"""Checkpoints of sharded training, loaded on any number of ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.collectives.processes import checks_in, failures
from tests.distributed import checkpoint_checks, memory_checks, table_file_checks

CHECKS = checks_in(checkpoint_checks, table_file_checks)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return failures(CHECKS, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name: str, on_two_ranks: dict[str, str]):
    assert name not in on_two_ranks, on_two_ranks[name]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_on_other_numbers_of_ranks(ranks: int, tmp_path: Path):
    assert failures(CHECKS, ranks, tmp_path) == {}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads memory use from /proc")
def test_no_rank_holds_its_rows_twice(tmp_path: Path):
    check = memory_checks.no_rank_holds_its_rows_twice
    assert failures({"memory": check}, 2, tmp_path) == {}
