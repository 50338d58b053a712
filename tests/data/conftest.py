"""What all tests of readers share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """A cache of its own for each test, hidden so that no reader takes it for data."""
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / ".cache"))
