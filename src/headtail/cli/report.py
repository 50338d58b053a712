"""`headtail report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headtail.cli.tables import show_results
from headtail.comparison.results import Comparison
from headtail.files.outputs import check_out_file


@dataclass(frozen=True)
class Report:
    """Write the report of a comparison again, and print its table; of one that was stopped, with
    what is finished.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[RESULTS]")] = Path(
        "comparison"
    )
    """Folder made by headtail compare."""
    out: Path | None = None
    """File to write; by default report.html in that folder."""

    def run(self) -> int:
        """Write it."""
        path = self.out or self.folder / "report.html"
        if self.out is not None:
            check_out_file(path)
        publish(Comparison.read(self.folder), path)
        return 0


def publish(comparison: Comparison, path: Path) -> None:
    """Write the report and print the table."""
    from headtail.report import write_report  # templates are slow to load

    write_report(comparison, path)
    show_results(comparison, path)
