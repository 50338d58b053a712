"""Facts about data, settings and versions: tables of two columns, and cards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from headtail.comparison.results import Try
from headtail.report.seed_mean import percent
from headtail.report.table import Column, Table, TableCell

_COUNTS = {
    "num_labels": "labels",
    "train_points": "training points",
    "test_points": "test points",
}
_NUMBERS = {
    "labels_per_point": (".1f", "labels per point"),
    "imbalance": (",.0f", "times: the most frequent label against the rarest that occurs"),
    "gini": (".2f", "Gini index: 0 for equal labels, 1 if one has all examples"),
}


def facts_table(name: str, caption: str, facts: Mapping[str, Any]) -> Table:
    """Two columns: name and value."""
    flat = _flat(facts)
    headings = [Column("name", numeric=False), Column("value", numeric=False)]
    rows = [[TableCell(key, key), TableCell(_word(value), None)] for key, value in flat.items()]
    csv = [["name", "value"], *([key, value] for key, value in flat.items())]
    return Table(name, caption, headings, rows, csv)


def tries_table(tries: Iterable[Try]) -> Table:
    """What tuning tried for each scheme; what it chose is bold."""
    names = ("scheme", "lr", "epochs", "best_epoch", "metric", "value")
    headings = [
        Column(name.replace("_", " "), numeric=name not in ("scheme", "metric")) for name in names
    ]
    rows = []
    csv: list[list[Any]] = [[*names, "chosen"]]
    for one in tries:
        values = [getattr(one, name) for name in names]
        mark = "best" if one.chosen == "yes" else ""
        rows.append([TableCell(_word(value), value, mark) for value in values])
        csv.append([*values, one.chosen])
    return Table("tries", "What tuning tried", headings, rows, csv)


def cards(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The key facts of the data, each a number and what it counts; unknown ones are left out."""
    shown = [(f"{data[key]:,}", text) for key, text in _COUNTS.items() if data.get(key) is not None]
    for key, (form, text) in _NUMBERS.items():
        value = data.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            shown.append((format(value, form), text))
    if data.get("never_seen"):
        labels = data.get("num_labels")
        share = f" ({percent(data['never_seen'] / labels)})" if labels else ""
        shown.append((f"{data['never_seen']:,}", f"labels without a training example{share}"))
    return shown


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{key}"] = ", ".join(map(str, value))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _word(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "–"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
