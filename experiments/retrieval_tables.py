"""Turn the runs of `retrieval.py` into the committed rows, and print the tables of docs/results.md.

    .venv/bin/python experiments/retrieval_tables.py experiments/results/retrieval

writes `retrieval.csv` (test rows of the chosen learning rates) and `retrieval-tuning.csv` next to
the folder, and prints the tables in Markdown. Rows of schemes that are not in the folder are kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from study_tables import given_folder, read_table, rows_in, shown, with_known, write_table

from headtail.comparison.results import Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.records import to_csv

SLICES = ("head", "torso", "tail", "full")


def gather(folder: Path) -> tuple[list[Row], list[dict[str, str]]]:
    """Test rows of the chosen runs, and all learning rates that were tried."""
    rows: list[Row] = []
    tuning: list[dict[str, str]] = []
    for data in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (data / "baseline.csv").exists():
            rows += read_rows(data / "baseline.csv")
        runs = [read_rows(path) for path in sorted((data / "runs").glob("*.csv"))]
        for about in sorted(data.glob("*.json")):
            found = json.loads(about.read_text())
            for rate, value in found["tried"].items():
                judged = {"implicit_loss": str(value), "chosen": str(float(rate) == found["lr"])}
                tuning.append(
                    {"dataset": data.name, "scheme": found["scheme"], "lr": rate} | judged
                )
            for run in runs:
                if run[0].scheme == found["scheme"] and f"-lr{found['lr']:g}-" in run[0].run:
                    rows += [row for row in run if row.split == "test"]
    return rows, tuning


def table(rows: list[Row], columns: list[tuple[str, str]], schemes: list[str]) -> str:
    """Markdown table: schemes by (metric, slice), mean ± standard deviation in percent."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        values[row.scheme, row.metric, row.slice].append(row.value)
    lines = [
        "| scheme | " + " | ".join(f"{metric} {slice_}" for metric, slice_ in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for scheme in schemes:
        cells = [shown(values[scheme, *column]) for column in columns]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write the CSV files and print the tables."""
    folder = given_folder()
    beside = folder.parent
    rows, tuning = gather(folder)
    rows = with_known(
        rows, rows_in(beside / "retrieval.csv"), lambda row: (row.dataset, row.scheme)
    )
    rows.sort(key=lambda row: (row.dataset, row.scheme, row.seed))
    held = read_table(beside / "retrieval-tuning.csv")
    tuning = with_known(tuning, held, lambda line: (line["dataset"], line["scheme"]))
    tuning.sort(key=lambda line: (line["dataset"], line["scheme"], float(line["lr"])))
    write_text(beside / "retrieval.csv", to_csv(rows, Row))
    write_table(beside / "retrieval-tuning.csv", tuning)
    for data in dict.fromkeys(row.dataset for row in rows):
        here = [row for row in rows if row.dataset == data]
        schemes = list(dict.fromkeys(row.scheme for row in here))
        seeds = {
            scheme: len({row.seed for row in here if row.scheme == scheme}) for scheme in schemes
        }
        print(f"\n## {data}\n")
        for family in ("softmax", "contrastive"):
            names = sorted(
                (
                    name
                    for name in schemes
                    if name.startswith("contrastive") == (family == "contrastive")
                ),
                key=lambda n: (":" in n, n),
            )
            if family == "contrastive" and not names:
                continue
            columns = [("recall@10", slice_) for slice_ in SLICES]
            columns += [
                ("precision@1", "full"),
                ("psp@1", "full"),
                ("coverage@10", "full"),
                ("balanced-error", "full"),
            ]
            print(
                f"\n{family}, seeds "
                f"{sorted({seeds[n] for n in names})}\n\n{table(here, columns, names)}"
            )
            print(
                "\n"
                + table(
                    here, [(f"recall@{k}", slice_) for k in (1, 50) for slice_ in SLICES], names
                )
            )


if __name__ == "__main__":
    main()
