"""The tables: what stands in the page, and behind it every digit for the CSV file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headtail.comparison.results import POPULAR
from headtail.report.findings import percent, points, with_error
from headtail.report.measured import SLICES, Estimate, Measured, Reference

LOWER_IS_BETTER = ("balanced-error", "class-weighted-error")


@dataclass(frozen=True)
class Column:
    """A heading.

    Attributes:
        text: what it says.
        slice: the slice it is shown with, or "" for always.
        numeric: whether it is set flush right.
    """

    text: str
    slice: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """What a reader sees, and what a column is sorted by.

    Attributes:
        text: as shown.
        value: a number or a word; None sorts last.
        mark: "best", "up", "down" or "".
        detail: shown small below.
    """

    text: str
    value: float | str | None
    mark: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: its id, and the name of its CSV file.
        caption: for those who do not see it.
        columns: the headings.
        rows: the cells, a list a row.
        csv: first line and all others, with every digit.
        baseline: the row that is marked as baseline, or -1.
    """

    name: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    csv: list[list[Any]]
    baseline: int = -1


def metrics_table(measured: Measured) -> Table:
    """Every metric of every scheme, a set of columns a slice."""
    schemes = [*measured.schemes, *([POPULAR] if measured.popular else [])]
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
    rows: list[list[Cell]] = []
    csv: list[list[Any]] = [["scheme", "slice", "metric", "value", "low", "high", "seeds"]]
    for name in schemes:
        row = [Cell(name, name)]
        for metric, slice_ in columns:
            found = measured.of(name, metric, slice_)
            text, _, spread = with_error(found).partition(" ")
            mark = "best" if found.value == best[metric, slice_] and name != POPULAR else ""
            row.append(Cell(text.rstrip("%"), found.value, mark, spread))
            csv.append([name, slice_, metric, found.value, found.low, found.high, found.seeds])
        rows.append(row)
    headings = [
        Column("scheme", numeric=False),
        *(Column(metric, slice_) for metric, slice_ in columns),
    ]
    baseline = len(schemes) - 1 if measured.popular else -1
    return Table(
        "metrics", "Every metric of every scheme, in percent", headings, rows, csv, baseline
    )


def optimised_table(schemes: dict[str, dict[str, Any]], measured: Measured) -> Table:
    """What each scheme implicitly optimises, beside what it did to head and tail against the
    reference.
    """
    reference = Reference.of(measured)
    by = measured.yardstick
    shown = [name for name in SLICES if measured.known(by.metric, name)]
    headings = [Column("scheme", numeric=False), Column("implicit loss", numeric=False)]
    whole = "balanced" if by.metric == "balanced-error" else "full"
    headings += [
        Column("lean"),
        Column("noise"),
        *(Column(f"Δ {whole if name == 'full' else name}") for name in shown),
    ]
    csv: list[list[Any]] = [["scheme", "loss", "equation", "rho", "leans", "lean", "noise", "m"]]
    csv[0] += [
        f"{slice_} {by.metric} {what}" for slice_ in shown for what in ("difference", "deviation")
    ]
    rows = []
    for name in dict.fromkeys([*schemes, *measured.schemes]):
        about = schemes.get(name, {})
        changes = [reference.difference(name, by.metric, slice_) for slice_ in shown]
        loss = about.get("name") or ("no common name" if about.get("equation") else "–")
        leans = "tail, by its answers" if name.endswith("+post-hoc") else about.get("leans") or ""
        rows.append(
            [
                Cell(name, name),
                Cell(loss, about.get("name") or "", detail=about.get("equation") or ""),
                replace(_nats(about.get("lean"), sign=True), detail=leans),
                _noise(about.get("noise")),
                *(_change(change, name == reference.scheme, by.sign) for change in changes),
            ]
        )
        facts = [
            about.get(key) for key in ("name", "equation", "rho", "leans", "lean", "noise", "m")
        ]
        csv.append(
            [name, *facts, *(end for change in changes for end in (change.value, change.deviation))]
        )
    return Table("optimised", "What each scheme optimises, and what it did", headings, rows, csv)


def facts_table(name: str, caption: str, facts: Mapping[str, Any]) -> Table:
    """Two columns: a name, and what it is."""
    flat = _flat(facts)
    headings = [Column("name", numeric=False), Column("value", numeric=False)]
    rows = [[Cell(key, key), Cell(_word(value), None)] for key, value in flat.items()]
    return Table(
        name,
        caption,
        headings,
        rows,
        [["name", "value"], *([key, value] for key, value in flat.items())],
    )


def _best(values: list[float], metric: str) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.nan if not known else min(known) if metric in LOWER_IS_BETTER else max(known)


def _nats(value: float | None, *, sign: bool = False) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("–", None)
    text = f"{value:+.2f}" if sign and abs(value) >= 0.005 else f"{abs(value):.2f}"
    return Cell(text.replace("-", "−"), value)


def _noise(value: float | None) -> Cell:
    """With the digits that explain shows: small noise is not none."""
    return (
        Cell("–", None)
        if value is None or not math.isfinite(value)
        else Cell(f"{value:.2g}", value)
    )


def _change(change: Estimate, itself: bool, sign: int) -> Cell:
    if itself and change.known:
        return Cell("0", 0.0)
    settled = change.known and change.value != 0 and not abs(change.value) <= change.deviation
    mark = "" if not settled else "up" if sign * change.value > 0 else "down"
    spread = "" if not math.isfinite(change.deviation) else f"± {100 * change.deviation:.1f}"
    return Cell(points(change.value), change.value, mark, spread)


def _flat(facts: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = (
                ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            )
    return flat


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def cards(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The key facts of the data: a number and what it counts; what is not known is left out."""
    counts = (
        ("num_labels", "labels"),
        ("train_points", "training points"),
        ("test_points", "test points"),
    )
    found = [(f"{data[key]:,}", text) for key, text in counts if data.get(key) is not None]
    rates = (
        ("labels_per_point", "labels a point", ".1f"),
        ("imbalance", "times as frequent: first label to last that occurs", ",.0f"),
    )
    found += [
        (format(data[key], form), text) for key, text, form in rates if _is_number(data.get(key))
    ]
    if _is_number(data.get("gini")):
        found.append((f"{data['gini']:.2f}", "Gini: 0 all alike, 1 one label has all"))
    if data.get("never_seen"):
        share = percent(data["never_seen"] / data["num_labels"]) if data.get("num_labels") else ""
        found.append(
            (
                f"{data['never_seen']:,}",
                f"labels without a training example{f' ({share})' if share else ''}",
            )
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
