"""From the runs of `retrieval.py` to what is committed: one CSV of rows, one of the tuning, and the tables of docs/results.md.

    .venv/bin/python experiments/retrieval_tables.py experiments/results/retrieval

prints the tables in Markdown and writes `retrieval.csv` (test rows of the chosen learning rates) and `retrieval-tuning.csv` beside.
Of schemes that were not run there, what both hold already stays.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from pathlib import Path

from longtail_tables import given_folder

from headtail.metrics import mean_and_deviation
from headtail.results import Row, read_rows, to_csv, write_text

SLICES = ("head", "torso", "tail", "full")


def gather(folder: Path) -> tuple[list[Row], list[dict[str, object]]]:
    """Test rows of chosen runs, and what was tried."""
    rows: list[Row] = []
    tuning: list[dict[str, object]] = []
    for data in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (data / "baseline.csv").exists():
            rows += read_rows(data / "baseline.csv")
        runs = [read_rows(path) for path in sorted((data / "runs").glob("*.csv"))]
        for about in sorted(data.glob("*.json")):
            found = json.loads(about.read_text())
            for rate, value in found["tried"].items():
                chosen = float(rate) == found["lr"]
                tuning.append(
                    {"dataset": data.name, "scheme": found["scheme"], "lr": rate, "implicit_loss": value, "chosen": chosen}
                )
            for run in runs:
                if run[0].scheme == found["scheme"] and f"-lr{found['lr']:g}-" in run[0].run:
                    rows += [row for row in run if row.split == "test"]
    return rows, tuning


def with_known(rows: list[Row], tuning: list[dict[str, object]], folder: Path) -> tuple[list[Row], list[dict[str, object]]]:
    """And what the files hold of other schemes, sorted."""
    new, tried = {(row.dataset, row.scheme) for row in rows}, {(line["dataset"], line["scheme"]) for line in tuning}
    if (folder / "retrieval.csv").exists():
        rows = [*rows, *(row for row in read_rows(folder / "retrieval.csv") if (row.dataset, row.scheme) not in new)]
    if (folder / "retrieval-tuning.csv").exists():
        with (folder / "retrieval-tuning.csv").open(newline="") as file:
            tuning = [*tuning, *(line for line in csv.DictReader(file) if (line["dataset"], line["scheme"]) not in tried)]
    return (
        sorted(rows, key=lambda row: (row.dataset, row.scheme, row.seed)),
        sorted(tuning, key=lambda line: (line["dataset"], line["scheme"], float(str(line["lr"])))),
    )


def table(rows: list[Row], columns: list[tuple[str, str]], schemes: list[str]) -> str:
    """Markdown: schemes down, (metric, slice) across, mean ± deviation in percent."""
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


def shown(values: list[float]) -> str:
    """In percent."""
    if not values:
        return "–"
    mean, deviation = mean_and_deviation(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def main() -> None:
    """Write the CSV files and print the tables."""
    folder = given_folder()
    rows, tuning = with_known(*gather(folder), folder.parent)
    write_text(folder.parent / "retrieval.csv", to_csv(rows))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(tuning[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(tuning)
    write_text(folder.parent / "retrieval-tuning.csv", text.getvalue())
    for data in dict.fromkeys(row.dataset for row in rows):
        here = [row for row in rows if row.dataset == data]
        schemes = list(dict.fromkeys(row.scheme for row in here))
        seeds = {scheme: len({row.seed for row in here if row.scheme == scheme}) for scheme in schemes}
        print(f"\n## {data}\n")
        for family in ("softmax", "contrastive"):
            names = sorted(
                (name for name in schemes if name.startswith("contrastive") == (family == "contrastive")),
                key=lambda n: (":" in n, n),
            )
            if family == "contrastive" and not names:
                continue
            columns = [("recall@10", slice_) for slice_ in SLICES]
            columns += [("precision@1", "full"), ("psp@1", "full"), ("coverage@10", "full"), ("balanced-error", "full")]
            print(f"\n{family}, seeds {sorted({seeds[n] for n in names})}\n\n{table(here, columns, names)}")
            print("\n" + table(here, [(f"recall@{k}", slice_) for k in (1, 50) for slice_ in SLICES], names))


if __name__ == "__main__":
    main()
