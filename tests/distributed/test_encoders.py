"""Encoders under DDP and FSDP2 learn below a sharded head what one process learns."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.collectives.processes import failures
from tests.distributed import encoder_checks

CHECKS = {
    name: check
    for name, check in inspect.getmembers(encoder_checks, inspect.isfunction)
    if inspect.getmodule(check) is encoder_checks and not name.startswith("_")
}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return failures(CHECKS, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name: str, on_two_ranks: dict[str, str]):
    assert name not in on_two_ranks, on_two_ranks[name]


@pytest.mark.long
def test_on_three_ranks(tmp_path: Path):
    assert failures(CHECKS, 3, tmp_path) == {}
