"""What `headtail explain` predicts of the schemes of the first retrieval study: their leans.

    .venv/bin/python experiments/first_edition_leans.py DATA

writes experiments/results/retrieval-leans.csv, from the label counts in the folder DATA. They need
no training; `first_edition_tables.py` compares them with what training did.
"""

from __future__ import annotations

import sys
from pathlib import Path

from first_edition_tables import EXACT, LEANS, SAMPLED
from study_protocols import BAGS, Places, read_data
from study_runs import explained
from study_tables import write_table

from headtail.training.recipes import with_defaults


def main() -> None:
    """Write a row per data set and scheme."""
    places = Places(Path(sys.argv[1]))
    lines = []
    for protocol in BAGS[:3]:
        data = read_data(protocol, places)
        for scheme in (*EXACT, *SAMPLED):
            run = with_defaults(protocol.run(scheme, (0.02, 8)), data)
            lean = explained(run, data)["lean"]
            lines.append({"dataset": protocol.name, "scheme": scheme, "lean": f"{lean:.6f}"})
    write_table(LEANS, lines)


if __name__ == "__main__":
    main()
