"""`headtail report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headtail.cli.tables import show_results
from headtail.results import Comparison


@dataclass(frozen=True)
class Report:
    """Write the report of a comparison again, and print its table."""

    folder: Annotated[Path, tyro.conf.Positional] = Path("comparison")
    """Folder made by headtail compare."""
    out: Path | None = None
    """File to write; by default report.html in that folder."""

    def run(self) -> int:
        """Write it."""
        from headtail.report import write_report

        found, path = Comparison.read(self.folder), self.out or self.folder / "report.html"
        write_report(found, path)
        show_results(found, path)
        return 0
