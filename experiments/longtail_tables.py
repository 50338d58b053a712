"""Turn the runs of `longtail.py` into the committed rows and tables.

    .venv/bin/python experiments/longtail_tables.py experiments/results/longtail

writes `longtail.csv` (test rows), `longtail-losses.csv` (training losses after some epochs and the
last) and `longtail-classes.csv` (errors per class, with their standard deviation over seeds) next
to the folder; `longtail_page.py` then makes the verdicts, and the tables of
`docs/results-longtail.md`. Rows of runs that are not in the folder are kept.
`docs/figures/longtail.py` draws the figures.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from longtail_page import PAGE, make
from study_tables import given_folder, read_table, rows_in, with_known, write_table

from headtail.comparison.results import CLASSES, POPULAR, ClassError, Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.records import read_csv, to_csv
from headtail.metrics import mean_and_deviation

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
    make(beside, PAGE)


if __name__ == "__main__":
    main()
