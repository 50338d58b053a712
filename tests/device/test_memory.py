"""How much memory there is."""

from __future__ import annotations

import pytest

from headtail.device import memory


def test_a_container_has_no_more_memory_than_its_limit_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = memory.memory_left("cpu")
    if whole is None:
        pytest.skip("this system does not tell its memory")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory_left("cpu") > 10_000_000
    (tmp_path / "memory.max").write_text("3000000\n")
    assert memory.memory_left("cpu") == 2_000_000
