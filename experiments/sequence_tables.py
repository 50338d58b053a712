"""Print the tables of docs/results-sequences.md from the rows of `sequence_models.py`.

    .venv/bin/python experiments/sequence_tables.py

Rows are those of every CSV file in `experiments/results/sequence_models`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from study_tables import read_table

RESULTS = Path(__file__).parent / "results" / "sequence_models"
SETTINGS = ("encoder", "scheme", "dim", "batch", "lr", "dropout")
SLICES = ("full", "head", "torso", "tail")
MAIN = {"beauty": "ndcg@10", "diginetica": "recall@20"}
"""The metric of the published numbers, by data."""


def lines() -> list[dict[str, str]]:
    """The rows of all files."""
    return [line for path in sorted(RESULTS.glob("*.csv")) for line in read_table(path)]


def table(data: str, rows: list[dict[str, str]]) -> str:
    """One line per setting: the metrics in percent, means over seeds."""
    metric = MAIN[data]
    runs = defaultdict(list)
    for row in rows:
        if row["data"] == data:
            runs[tuple(row[name] for name in SETTINGS)].append(row)
    ordered = sorted(runs.items(), key=lambda pair: -_mean(pair[1], "validation"))
    titles = [*SETTINGS, "seeds", "best epoch", "validation recall@10"]
    titles += ["ndcg@10 of all users"] if data == "beauty" else []
    titles += [f"{metric} {slice_}" for slice_ in SLICES]
    shown = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for setting, same in ordered:
        epochs = ", ".join(row["best epoch"] for row in same)
        cells = [*setting, str(len(same)), epochs, _percent(same, "validation")]
        cells += [_percent(same, "ndcg@10 all")] if data == "beauty" else []
        cells += [_percent(same, f"{metric} {slice_}") for slice_ in SLICES]
        shown.append("| " + " | ".join(cells) + " |")
    return "\n".join(shown)


def _mean(rows: list[dict[str, str]], column: str) -> float:
    return sum(float(row[column]) for row in rows) / len(rows)


def _percent(rows: list[dict[str, str]], column: str) -> str:
    return f"{100 * _mean(rows, column):.2f}"


def main() -> None:
    """Print a table for each data set."""
    rows = lines()
    for data in MAIN:
        print(f"## {data}\n\n{table(data, rows)}\n")


if __name__ == "__main__":
    main()
