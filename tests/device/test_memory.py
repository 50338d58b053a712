"""How much memory is free."""

from __future__ import annotations

import pytest

from headtail.device.memory import memory_left


def test_a_container_has_no_more_memory_than_its_limit_leaves(tmp_path):
    if memory_left("cpu", tmp_path) is None:
        pytest.skip("this system does not report its memory")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_left("cpu", tmp_path) > 10_000_000
    (tmp_path / "memory.max").write_text("3000000\n")
    assert memory_left("cpu", tmp_path) == 2_000_000
