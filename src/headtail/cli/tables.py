"""Results as tables in a terminal."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.drawing import HEAD, TAIL
from headtail.comparison.cautions import cautions_of
from headtail.comparison.results import POPULAR, Comparison, Row, Try, not_finished
from headtail.core.slices import describe_slices
from headtail.data.facts import Task
from headtail.files.names import NAME, shown
from headtail.metrics import mean_and_deviation

LIFT = "popularity-lift@10"
"""The one metric that is best neither high nor low."""
COLUMNS = (
    ("Head", "recall@10", "head"),
    ("Torso", "recall@10", "torso"),
    ("Tail", "recall@10", "tail"),
    ("Full", "recall@10", "full"),
    ("Cold", "recall@10", "cold"),
    ("P@1", "precision@1", "full"),
    ("PSP@1", "psp@1", "full"),
    ("nDCG@10", "ndcg@10", "full"),
    ("MRR@10", "mrr@10", "full"),
    ("filtered MRR", "filtered-mrr", "full"),
    ("filtered Hits@10", "filtered-hits@10", "full"),
    ("coverage", "coverage@10", "full"),
    ("popularity lift", LIFT, "full"),
)
ERRORS = (
    ("Head", "balanced-error", "head"),
    ("Torso", "balanced-error", "torso"),
    ("Tail", "balanced-error", "tail"),
    ("Balanced", "balanced-error", "full"),
    ("Prior-weighted", "class-weighted-error", "full"),
)
"""For classification, where the lowest is best."""
INTERVALS = "95% bootstrap intervals over test points."
FEWEST = 4
"""Columns that are shown however narrow the terminal is."""
Column = tuple[str, str, str]


def left_out(missing: dict[str, str]) -> list[Text]:
    """A line for each reason, with all names that it keeps out; `missing` maps name to reason."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, reason in missing.items():
        names_of[reason].append(name)
    return [
        Text(shown(f"Left out: {', '.join(names)}. {reason}"), style="yellow")
        for reason, names in names_of.items()
    ]


def broken(name: str, room: int) -> str:
    r"""A scheme's name in lines of at most `room` characters, broken after slashes, colons and
    commas, and not inside a word.

    >>> broken("contrastive/frequency(0.75):tail@256", 20)
    'contrastive/\n  frequency(0.75):\n  tail@256'
    """
    lines = [""]
    for word in re.findall(r"[^/:,]+[/:,]*", name) if len(name) > room else [name]:
        if lines[-1].strip() and len(lines[-1]) + len(word) > room:
            lines.append("  ")
        lines[-1] += word
    return "\n".join(lines)


def tries_table(tries: Iterable[Try]) -> Table:
    """What tuning tried, and what it chose."""
    table = _table("Tuning: short runs on held-out training points")
    table.add_column("scheme", overflow="fold")
    for heading in ("lr", "epochs", "best epoch", "value"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in tries:
        value = "diverged" if math.isnan(one.value) else f"{one.value:.4f}"
        numbers = (f"{one.lr:g}", str(one.epochs), str(one.best_epoch), value)
        chosen = one.chosen == "yes"
        mark = f"chosen by {one.metric}" if chosen else ""
        table.add_row(shown(one.scheme, NAME), *numbers, mark, style="bold" if chosen else "")
    return table


def show_results(comparison: Comparison, report: Path) -> None:
    """The table of a comparison, if anything was trained, warnings, and where its report is."""
    console = Console()
    if any(row.split == "test" and row.scheme != POPULAR for row in comparison.rows):
        console.print(results_table(comparison, console.width))
    elif comparison.failures:
        number = len(comparison.failures)
        runs = "the only run" if number == 1 else f"all {number:,} runs"
        console.print(Text(f"Nothing was trained: {runs} failed.", style="yellow"))
    for sentence in cautions_of(comparison):
        console.print(Text(shown(sentence), style="yellow"))
    if comparison.missing:
        console.print(Text(shown(f"{not_finished(comparison)}."), style="yellow"))
    console.print(f"report: {report}", soft_wrap=True)


def results_table(comparison: Comparison, width: int = 120) -> Table:
    """Recall@10 or error by slice, and as many other metrics as fit; the best of each column is
    bold.
    """
    measured = {(row.metric, row.slice) for row in comparison.rows if row.split == "test"}
    columns = ERRORS if comparison.data.get("task") == "classification" else COLUMNS
    columns = [*columns[:FEWEST], *(each for each in columns[FEWEST:] if _key(each) in measured)]
    fits = (
        number
        for number in range(len(columns), FEWEST, -1)
        if _width(_results(comparison, columns[:number])) <= width
    )
    number = next(fits, FEWEST)
    longest = max(len(shown(name, NAME)) for name in [*comparison.schemes, POPULAR])
    table = _results(comparison, columns[:number])
    room = width - (_width(table) - longest)
    if room < longest:
        table = _results(comparison, columns[:number], room)
    if number < len(columns):
        missing = ", ".join(heading for heading, *_ in columns[number:])
        table.caption = Text(f"{table.caption} {missing}: in the report, or in a wider window.")
    return table


def _results(comparison: Comparison, columns: Sequence[Column], room: int | None = None) -> Table:
    """These columns; names longer than `room` continue on a second line."""
    values = collect(comparison.rows)
    seeds = len({row.seed for row in comparison.rows if row.split == "test"})
    names = [name for name in [*comparison.schemes, POPULAR] if name in values]
    what, sign = ("Error", -1) if columns[0] in ERRORS else ("Recall@10", 1)
    table = _table(f"{comparison.data.get('name', 'comparison')}: {what} by slice, in percent")
    table.add_column("scheme", overflow="fold")
    table.add_column("leans", no_wrap=True)
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    best = {
        key: sign * max((_mean(values[name].get(key, []), sign) for name in names), default=0)
        for key in map(_key, columns)
    } | {(LIFT, "full"): math.nan}
    for name in names:
        if name == POPULAR:
            table.add_section()
        leans = comparison.schemes.get(name, {}).get("leans", "")
        style = TAIL if leans == "tail" else HEAD if leans == "head" else "dim"
        cells = [
            _cell(values[name].get((metric, slice_), []), best[(metric, slice_)])
            for _, metric, slice_ in columns
        ]
        visible = shown(name, NAME)
        lines = visible if room is None else broken(visible, room)
        table.add_row(
            Text(lines, style="dim" if name == POPULAR else ""),
            Text(shown(leans, NAME), style=style),
            *cells,
        )
    spread = "One seed; intervals are in the report"
    if seeds > 1:
        spread = f"Mean ± deviation over {seeds} seeds"
    slices = comparison.data.get("slices", {})
    if {"sizes", "pairs", "rule"} <= slices.keys():
        shares = describe_slices(slices["sizes"], slices["pairs"])
        spread = f"Slices: {shares}; {slices['rule']}. {spread}"
    table.caption = Text(shown(f"{spread}."))
    return table


def measures_table(
    title: str, rows: list[Row], width: int = 120, task: Task = "retrieval"
) -> Table:
    """The test metrics of one model by slice, in percent; for classification, its errors as in
    `results_table`.

    95% bootstrap intervals are next to the numbers, or below them if the table would be wider than
    `width`.
    """
    make = _errors if task == "classification" else _measures
    table = make(title, rows, " [{}]", "In brackets")
    return table if _width(table) <= width else make(title, rows, "\n{}", "Below the numbers")


def _errors(title: str, rows: list[Row], interval: str, where: str) -> Table:
    by = {(row.metric, row.slice): row for row in rows}
    table = _table(f"{title}: Error by slice, in percent")
    for heading, *_ in ERRORS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(*(_interval(by.get(_key(column)), interval) for column in ERRORS))
    table.caption = Text(f"{where}: {INTERVALS}")
    return table


def _measures(title: str, rows: list[Row], interval: str, where: str) -> Table:
    by = {(row.metric, row.slice): row for row in rows}
    slices = [
        name
        for name in ("head", "torso", "tail", "cold", "full")
        if any(key[1] == name for key in by)
    ]
    table = _table(f"{title}, in percent")
    table.add_column("metric", no_wrap=True)
    for name in slices:
        table.add_column(name.capitalize(), justify="right", no_wrap=True)
    for metric in dict.fromkeys(row.metric for row in rows):
        table.add_row(
            shown(metric, NAME), *(_interval(by.get((metric, name)), interval) for name in slices)
        )
    table.caption = Text(f"{where}: {INTERVALS}")
    return table


def _table(title: str) -> Table:
    table = Table(
        title=Text(shown(title)),
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.collapse_padding = True
    table.title_justify = table.caption_justify = "left"
    return table


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _interval(row: Row | None, interval: str) -> Text:
    if row is None or math.isnan(row.value):
        return Text("–" if row else "", style="dim")
    if row.low is None or row.high is None:
        return Text(f"{100 * row.value:.1f}")
    return Text(f"{100 * row.value:.1f}") + Text(
        interval.format(f"{100 * row.low:.1f}–{100 * row.high:.1f}"), style="dim"
    )


def collect(rows: Iterable[Row]) -> dict[str, dict[tuple[str, str], list[float]]]:
    """Test values over seeds, by scheme, then by (metric, slice)."""
    values: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.split == "test":
            values[row.scheme][row.metric, row.slice].append(row.value)
    return values


def _key(column: Column) -> tuple[str, str]:
    return column[1], column[2]


def _mean(values: list[float], sign: int) -> float:
    """For picking the best: more is better, and no values lose to any."""
    mean = mean_and_deviation(values)[0] if values else math.nan
    return -math.inf if math.isnan(mean) else sign * mean


def _cell(values: list[float], best: float) -> Text:
    if not values or any(map(math.isnan, values)):
        return Text("–", style="dim")
    mean, deviation = mean_and_deviation(values)
    shown = f"{100 * mean:.1f}" + ("" if deviation is None else f" ±{100 * deviation:.1f}")
    return Text(shown, style="bold" if mean == best else "")
