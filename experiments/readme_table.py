"""README's table of results, from rows: Recall@10 on whole data sets, each from the latest edition
of the retrieval study that has it.

    .venv/bin/python experiments/readme_table.py
"""

from __future__ import annotations

from by_seed import Values
from first_edition_tables import README, RESULTS, at_ten, read_values
from study_tables import publish, read_table


def second_edition() -> Values:
    """Values by seed of the second edition."""
    return {
        (line["dataset"], line["scheme"], line["metric"], line["slice"]): [
            float(value) for value in line["by seed"].split()
        ]
        for line in read_table(RESULTS / "evidence.csv")
    }


def tables() -> dict[str, str]:
    """The table, by the name of its marker."""
    again = second_edition()
    done = {name for name, *_ in again}
    first = {key: of for key, of in read_values().items() if key[0] not in done}
    return {"recall at 10": at_ten({**first, **again})}


if __name__ == "__main__":
    publish(README, tables())
