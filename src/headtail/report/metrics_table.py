"""The table of all metrics."""

from __future__ import annotations

import math
from typing import Any

from headtail.comparison.results import POPULAR
from headtail.report.measured import SLICES, Measured
from headtail.report.seed_mean import with_error
from headtail.report.table import Column, Table, TableCell

LOWER_IS_BETTER = ("balanced-error", "class-weighted-error")
NEITHER_IS_BETTER = ("popularity@10", "popularity-lift@10")


def metrics_table(measured: Measured) -> Table:
    """Every metric of every scheme, one set of columns per slice."""
    schemes = measured.with_popular
    columns = [
        (metric, slice_)
        for slice_ in ("full", *SLICES[:-1])
        for metric in measured.metrics
        if any(measured.of(name, metric, slice_).known for name in schemes)
    ]
    best = {
        column: _best([measured.of(name, *column).value for name in measured.schemes], column[0])
        for column in columns
    }
    rows: list[list[TableCell]] = []
    csv: list[list[Any]] = [["scheme", "slice", "metric", "value", "low", "high", "seeds"]]
    for name in schemes:
        row = [TableCell(name, name)]
        for metric, slice_ in columns:
            mean = measured.of(name, metric, slice_)
            text, _, spread = with_error(mean).partition(" ")
            mark = "best" if mean.value == best[metric, slice_] and name != POPULAR else ""
            row.append(TableCell(text.rstrip("%"), mean.value, mark, spread))
            csv.append([name, slice_, metric, mean.value, mean.low, mean.high, mean.seeds])
        rows.append(row)
    headings = [Column("scheme", numeric=False)]
    headings += [Column(metric, slice_) for metric, slice_ in columns]
    baseline = len(schemes) - 1 if measured.popular else -1
    caption = "Every metric of every scheme, in percent"
    return Table("metrics", caption, headings, rows, csv, baseline)


def _best(values: list[float], metric: str) -> float:
    known = [value for value in values if math.isfinite(value)]
    if not known or metric in NEITHER_IS_BETTER:
        return math.nan
    return min(known) if metric in LOWER_IS_BETTER else max(known)
