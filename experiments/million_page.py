"""The page of generated data with very many labels: docs/results-million.md, from its rows alone.

.venv/bin/python experiments/million_page.py
"""

from __future__ import annotations

from pathlib import Path

import evidence_page
from study_tables import publish

STUDY = "million"
PAGE = Path(__file__).parents[1] / "docs" / "results-million.md"
SHOWN = ("claims", "rates", "data sets")


def tables(folder: Path = evidence_page.RESULTS) -> dict[str, str]:
    """What the page shows, from the rows."""
    every = evidence_page.tables(evidence_page.read_rows(folder, STUDY))
    return {name: every[name] for name in SHOWN}


if __name__ == "__main__":
    publish(PAGE, tables())
