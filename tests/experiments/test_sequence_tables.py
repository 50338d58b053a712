"""The page on models of sequences shows the committed rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments.test_longtail import script

PAGE = Path(__file__).parents[2] / "docs" / "results-sequences.md"


@pytest.mark.parametrize("data", ["beauty", "diginetica"])
def test_the_page_shows_the_table_of_the_committed_rows(data):
    tables = script("sequence_tables")
    assert tables.table(data, tables.lines()) in PAGE.read_text(encoding="utf-8")
