"""Encoders under DDP and FSDP2 learn below a sharded head what one process learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.processes import checks_in, failures
from tests.distributed import clipping_checks, encoder_checks, scaler_checks

CHECKS = checks_in(encoder_checks, clipping_checks, scaler_checks)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return failures(CHECKS, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name: str, on_two_ranks: dict[str, str]):
    assert name not in on_two_ranks, on_two_ranks[name]


@pytest.mark.long
def test_on_three_ranks(tmp_path: Path):
    assert failures(CHECKS, 3, tmp_path) == {}
