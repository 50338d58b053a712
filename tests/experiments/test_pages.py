"""Every table between markers on every page is the one that its rows give."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import advice_outside
import advice_tables
import batch_tables
import defaults_tables
import evidence_page
import first_edition_tables
import longtail_page
import million_page
import paper_claims
import pytest
import readme_table
import samplers_tables
import sequence_tables
import tradeoff_tables
from study_tables import read_table, rows_in

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"<!-- table ([^>]+) -->\n(.*?)\n<!-- end -->", re.DOTALL)


def images() -> dict[str, str]:
    rows = rows_in(longtail_page.RESULTS / "longtail.csv")
    verdicts = read_table(longtail_page.RESULTS / "longtail-claims.csv")
    return {"claims": longtail_page.claims_table(verdicts)} | longtail_page.sections(rows)


def first_edition() -> dict[str, str]:
    return first_edition_tables.tables(first_edition_tables.read_values())


def advice() -> dict[str, str]:
    outside = read_table(advice_outside.RESULTS / f"{advice_outside.ROWS}-errors.csv")
    batches = batch_tables.table(read_table(batch_tables.ROWS))
    return advice_tables.tables() | {"outside": advice_outside.table(outside), "batches": batches}


TABLES: dict[str, Callable[[], dict[str, str]]] = {
    "README.md": readme_table.tables,
    "defaults.md": defaults_tables.tables,
    "results.md": paper_claims.tables,
    "results-advice.md": advice,
    "results-first.md": first_edition,
    "results-longtail.md": images,
    "results-million.md": million_page.tables,
    "results-retrieval.md": lambda: evidence_page.tables(evidence_page.read_rows()),
    "results-samplers.md": samplers_tables.tables,
    "results-sequences.md": sequence_tables.tables,
    "results-tradeoff.md": tradeoff_tables.tables,
}


def place(name: str) -> Path:
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def marked(path: Path) -> dict[str, str]:
    """What stands between the markers of a page."""
    return dict(MARKED.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", TABLES)
def test_a_page_shows_the_tables_of_its_rows(name):
    shown = marked(place(name))
    tables = TABLES[name]()
    assert set(shown) == set(tables)
    for title, text in shown.items():
        assert text == tables[title], f"`{title}` is not what the rows give: run its script again"


def test_every_page_with_markers_is_compared():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert {path.name for path in pages if marked(path)} == set(TABLES)
