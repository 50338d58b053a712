"""Turn the runs of `longtail.py` into the committed rows and tables.

    .venv/bin/python experiments/longtail_tables.py experiments/results/longtail

writes `longtail.csv` (test rows), `longtail-losses.csv` (training losses after some epochs and the
last) and `longtail-classes.csv` (errors per class, with their standard deviation over seeds) next
to the folder, and the tables into `docs/results-longtail.md`, between their markers. Rows of runs
that are not in the folder are kept. `docs/figures/longtail.py` draws the figures.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study_tables import given_folder, publish, read_table, rows_in, shown, with_known, write_table

from headtail.comparison.results import CLASSES, POPULAR, ClassError, Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.records import read_csv, to_csv
from headtail.metrics import mean_and_deviation

PAGE = Path(__file__).parents[1] / "docs" / "results-longtail.md"
COLUMNS = (
    ("Head", "balanced-error", "head"),
    ("Torso", "balanced-error", "torso"),
    ("Tail", "balanced-error", "tail"),
    ("Balanced", "balanced-error", "full"),
    ("Prior-weighted", "class-weighted-error", "full"),
)
EPOCHS = (1, 2, 5, 20)
"""Epochs with recorded training losses, besides the last one."""
ORDER = ("constant", "importance", "relative", "tail")


def rows_of(folder: Path) -> list[Row]:
    """Test rows of every finished run; `dataset` is the study."""
    rows: dict[tuple[object, ...], Row] = {}
    for study in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = [
            *sorted(study.glob("cells/*/results.csv")),
            *([study / "results.csv"] if (study / "results.csv").exists() else []),
        ]
        for row in (row for path in files for row in read_rows(path)):
            if row.split == "test":
                rows[study.name, row.scheme, row.seed, row.metric, row.slice] = replace(
                    row, dataset=study.name
                )
    return list(rows.values())


def losses_of(folder: Path) -> list[Row]:
    """Mean training losses of some epochs and of the last; `dataset` is the study."""
    found = []
    for path in sorted(folder.glob("*/cells/*/results.csv")):
        rows = [
            replace(row, dataset=path.parents[2].name)
            for row in read_rows(path)
            if (row.split, row.metric) == ("train", "loss")
        ]
        found += [row for row in rows if row.epoch in EPOCHS or row is rows[-1]]
    # it uses another run's model
    return [row for row in found if not row.scheme.endswith("+post-hoc")]


def class_means(folder: Path) -> list[dict[str, str]]:
    """Mean error per class over seeds, without the sweep, which has too many runs."""
    found: dict[tuple[str, str, int], list[ClassError]] = defaultdict(list)
    for path in sorted(folder.glob(f"*/cells/*/{CLASSES}")):
        for row in read_csv(path, ClassError):
            if "@" not in row.scheme:
                found[path.parents[2].name, row.scheme, row.label].append(row)
    means = []
    for (study, scheme, label), rows in found.items():
        mean, deviation = mean_and_deviation([row.error for row in rows])
        about = {
            "study": study,
            "scheme": scheme,
            "label": str(label),
            "train": str(rows[0].train),
            "test": str(rows[0].test),
        }
        means.append(
            about
            | {"error": f"{mean:.4f}", "deviation": "" if deviation is None else f"{deviation:.4f}"}
        )
    return means


def table(rows: Sequence[Row]) -> str:
    """Markdown table of errors in percent: schemes by slices, – where a slice is empty."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        values[row.scheme, row.metric, row.slice].append(row.value)
    lines = [
        "| scheme | seeds | " + " | ".join(title for title, *_ in COLUMNS) + " |",
        "|---|" + "--:|" * (len(COLUMNS) + 1),
    ]
    for scheme in dict.fromkeys(row.scheme for row in rows):
        cells = [shown(values[scheme, *key]) for _, *key in COLUMNS]
        seeds = len({row.seed for row in rows if row.scheme == scheme})
        lines.append(
            f"| {scheme} | {'' if scheme == POPULAR else seeds} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def sweep_table(rows: Sequence[Row], metric: str, slice_: str) -> str:
    """Markdown table: schemes run with several numbers of negatives, by number."""
    values: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        if row.m is not None and (row.metric, row.slice) == (metric, slice_):
            values[row.scheme.partition("@")[0], row.m].append(row.value)
    sizes = sorted({m for _, m in values})
    lines = [
        "| scheme | " + " | ".join(f"m = {m:g}" for m in sizes) + " |",
        "|---|" + "--:|" * len(sizes),
    ]
    for scheme, numbers in Counter(scheme for scheme, _ in values).items():
        if numbers == 1:
            continue
        cells = [shown(values.get((scheme, m), [])) for m in sizes]
        lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sections(rows: Sequence[Row]) -> dict[str, str]:
    """The tables by the name of their marker."""
    of_study: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_study[row.dataset].append(row)
    found = {study: table(part) for study, part in of_study.items() if not study.endswith("-sweep")}
    for study in (name for name in of_study if name.endswith("-sweep")):
        both = [*of_study[study.removesuffix("-sweep")], *of_study[study]]
        parts = [
            f"**{title}**\n\n{sweep_table(both, metric, slice_)}"
            for title, metric, slice_ in COLUMNS
        ]
        found[study] = "\n\n".join(parts)
    return found


def _run(row: Row) -> tuple[str, str, int]:
    return row.dataset, row.scheme, row.seed


def _place(scheme: str) -> tuple[object, ...]:
    """Sort key: all-label losses, then sampler, weighting and negatives; the baseline last."""
    name, _, m = scheme.partition("@")
    sampler, colon, weighting = name.partition(":")
    known = ORDER.index(weighting) if weighting in ORDER else len(ORDER)
    return (
        scheme == POPULAR,
        "/" in name or name == "contrastive",
        bool(colon),
        sampler,
        known,
        int(m or 0),
        name,
    )


def main() -> None:
    """Write the CSV files and the tables."""
    folder = given_folder()
    beside = folder.parent
    rows = with_known(rows_of(folder), rows_in(beside / "longtail.csv"), _run)
    rows.sort(key=lambda row: (row.dataset, _place(row.scheme), row.seed))
    losses = with_known(losses_of(folder), rows_in(beside / "longtail-losses.csv"), _run)
    losses.sort(key=_run)
    means = with_known(
        class_means(folder),
        read_table(beside / "longtail-classes.csv"),
        lambda one: (one["study"], one["scheme"]),
    )
    means.sort(key=lambda line: (line["study"], _place(line["scheme"]), int(line["label"])))
    write_text(beside / "longtail.csv", to_csv(rows, Row))
    write_text(beside / "longtail-losses.csv", to_csv(losses, Row))
    write_table(beside / "longtail-classes.csv", means)
    publish(PAGE, sections(rows))


if __name__ == "__main__":
    main()
