"""Put the rows of `sequence_models.py` into the tables of docs/results-sequences.md.

    .venv/bin/python experiments/sequence_tables.py

Rows are those of `experiments/results/sequence_models`: `seeds.csv` for the results, `alone` for
the times of runs that had the GPU to themselves, the other files for earlier runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from study_tables import publish, read_table

from headtail.metrics import mean_and_deviation

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "sequence_models"
PAGE = HERE.parent / "docs" / "results-sequences.md"
SETTINGS = ("encoder", "scheme", "dim", "batch", "lr", "dropout")
SLICES = ("full", "head", "torso", "tail")
NAMES = {"beauty": "Amazon Beauty", "diginetica": "Diginetica"}
MAIN = {"beauty": "ndcg@10", "diginetica": "recall@20"}
"""The metric of the published numbers, by data."""
PUBLISHED = {"beauty": "ndcg@10 all", "diginetica": "recall@20 full"}
"""The column with that metric as it is published."""
GOALS = {"beauty": (0.031, "3.27"), "diginetica": (0.5, "44 to 53")}
"""What the full softmax should reach at least, and what is published."""
WITHIN = {"beauty": 0.001, "diginetica": 0.005}
"""How far a sampled scheme may be below the full softmax."""
Rows = list[dict[str, str]]


def lines(*patterns: str) -> Rows:
    """The rows of some files."""
    paths = [path for pattern in patterns for path in sorted(RESULTS.glob(pattern))]
    return [line for path in paths for line in read_table(path)]


def settings_of(data: str, rows: Rows) -> list[tuple[tuple[str, ...], Rows]]:
    """Runs that differ in nothing but their seed; the best on validation first."""
    runs = defaultdict(list)
    for row in rows:
        if row["data"] == data:
            runs[tuple(row[name] for name in SETTINGS)].append(row)
    return sorted(runs.items(), key=lambda pair: -_mean(pair[1], "validation"))


def table(data: str, rows: Rows) -> str:
    """One line per setting: metrics in percent, means and deviations over seeds."""
    metric = MAIN[data]
    titles = [*SETTINGS, "best epoch", "validation recall@10"]
    titles += ["ndcg@10 of all users"] if data == "beauty" else []
    titles += [f"{metric} {slice_}" for slice_ in SLICES]
    shown = []
    for setting, same in settings_of(data, rows):
        epochs = ", ".join(row["best epoch"] for row in same)
        cells = [*setting, epochs, _percent(same, "validation")]
        cells += [_percent(same, "ndcg@10 all")] if data == "beauty" else []
        cells += [_percent(same, f"{metric} {slice_}") for slice_ in SLICES]
        shown.append(cells)
    return _markdown(titles, shown)


def chosen(data: str, rows: Rows) -> tuple[Rows, Rows]:
    """The runs of SASRec's full softmax, and of the sampled scheme that is best on validation."""
    several = [
        same
        for setting, same in settings_of(data, rows)
        if setting[0] == "sasrec" and len(same) > 1
    ]
    softmax = next(same for same in several if same[0]["scheme"] == "softmax")
    sampled = next(same for same in several if same[0]["scheme"] != "softmax")
    return softmax, sampled


def published_table(rows: Rows) -> str:
    """The full softmax of every encoder against the published numbers."""
    titles = ["data", "metric in %", "published", "goal", "encoder", "measured", ""]
    shown = []
    for data, column in PUBLISHED.items():
        goal, published = GOALS[data]
        for setting, same in settings_of(data, rows):
            if setting[1] == "softmax" and len(same) > 1:
                verdict = "**met**" if _mean(same, column) >= goal else "**missed**"
                cells = [NAMES[data], _metric(data), published, f"{100 * goal:g}", setting[0]]
                shown.append([*cells, _each(same, column), verdict])
    return _markdown(titles, shown)


def _metric(data: str) -> str:
    return MAIN[data].replace("ndcg", "nDCG").replace("recall", "Recall")


def goals_table(rows: Rows, alone: Rows) -> str:
    """The sampled scheme that validation chooses, against the full softmax."""
    titles = ["data", "metric", "full softmax", "sampled scheme", "sampled", "difference"]
    titles += ["allowed", "", "seconds per epoch, full", "sampled"]
    shown = []
    for data, column in PUBLISHED.items():
        both = chosen(data, rows)
        full, sampled = both
        cells = [
            NAMES[data],
            f"{_metric(data)} in %",
            _each(full, column),
            f"`{sampled[0]['scheme']}`",
        ]
        cells += [_each(sampled, column), _difference(full, sampled, column)]
        below = _mean(full, column) - _mean(sampled, column)
        verdict = "**met**" if below <= WITHIN[data] else "**missed**"
        cells += [f"{-100 * WITHIN[data]:.2f}", verdict]
        cells += [f"{_seconds(alone, same[0]):.2f}" for same in both]
        shown.append(cells)
    return _markdown(titles, shown)


def times_table(alone: Rows) -> str:
    """Seconds per epoch of runs that had the GPU to themselves."""
    shown = []
    for row in alone:
        seconds = float(row["seconds per epoch"])
        ratio = _seconds(alone, {**row, "scheme": "softmax"}) / seconds
        cells = [NAMES[row["data"]], row["batch"], row["scheme"], f"{seconds:.2f}", f"{ratio:.2f}"]
        shown.append(cells)
    return _markdown(["data", "batch", "scheme", "seconds per epoch", "softmax / scheme"], shown)


def _seconds(alone: Rows, like: dict[str, str]) -> float:
    same = ("data", *SETTINGS)
    [found] = [row for row in alone if all(row[name] == like[name] for name in same)]
    return float(found["seconds per epoch"])


def _difference(full: Rows, sampled: Rows, column: str) -> str:
    """Of the means, in percent, with its standard error."""
    error = sum(_statistics(rows, column)[1] ** 2 / len(rows) for rows in (full, sampled)) ** 0.5
    return f"{100 * (_mean(sampled, column) - _mean(full, column)):+.2f} ± {100 * error:.2f}"


def _statistics(rows: Rows, column: str) -> tuple[float, float]:
    mean, deviation = mean_and_deviation([float(row[column]) for row in rows])
    return mean, deviation or 0.0


def _mean(rows: Rows, column: str) -> float:
    return _statistics(rows, column)[0]


def _percent(rows: Rows, column: str) -> str:
    mean, deviation = _statistics(rows, column)
    return f"{100 * mean:.2f}" + (f" ± {100 * deviation:.2f}" if len(rows) > 1 else "")


def _each(rows: Rows, column: str) -> str:
    values = ", ".join(f"{100 * float(row[column]):.2f}" for row in rows)
    return f"{100 * _mean(rows, column):.2f} ({values})"


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = ["| " + " | ".join(cells) + " |" for cells in (titles, *rows)]
    return "\n".join([shown[0], "|---" * len(titles) + "|", *shown[1:]])


def tables() -> dict[str, str]:
    """The tables of the page, from the rows."""
    seeds, alone, earlier = lines("seeds.csv"), lines("alone/*.csv"), lines("exploration-*.csv")
    parts = {"published": published_table(seeds)}
    parts |= {"goals": goals_table(seeds, alone), "times": times_table(alone)}
    parts |= {data: table(data, seeds) for data in MAIN}
    return parts | {f"earlier {data}": table(data, earlier) for data in MAIN}


if __name__ == "__main__":
    publish(PAGE, tables())
