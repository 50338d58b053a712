"""The tables that `headtail advise` prints."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headtail.cli.advice import (
    Answer,
    code,
    ends,
    how_sure,
    in_words,
    measuring,
    notes,
    recommendation,
)
from headtail.cli.bench import HEADINGS, milliseconds
from headtail.core.slices import NAMES
from headtail.machine.advise import Candidate, Plan
from headtail.machine.fitted import LAW
from headtail.machine.step_cost import StepCost

BEST = "*"
"""Marks the recommended scheme, also where bold type is lost."""
OUTSIDE = "†"
"""Marks schemes with more or fewer labels per negative than the predictions were fitted to."""
TOO_LONG = "!"
"""Marks a training that takes longer than it may."""
TOO_BIG = "too big"


def print_answer(console: Console, answer: Answer) -> None:
    """Tables, the recommendation, how sure it is, code, and how to measure the gap."""
    plan = answer.plan
    console.print(
        Text(
            f"Target: {answer.target.name}. {plan.epochs} epochs with batch {plan.shape.batch:,} "
            f"are {plan.steps:,} steps, and the label head may take {plan.minutes:g} min in all.",
            style="dim",
        )
    )
    tables = [_cost_table(answer)]
    if answer.advice.verdict != "all labels":
        tables.append(_gap_table(answer))
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    for line in recommendation(answer):
        console.print(Text(line, style="bold"))
    for line in [*notes(answer), *how_sure(answer)]:
        console.print(Text(line))
    for line in code(answer):
        console.print(Text(line), soft_wrap=True)
    if (command := measuring(answer)) is not None:
        console.print("To measure the gap:")
        console.print(Text(f"    {command}"), soft_wrap=True)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", no_wrap=True)
    table.caption_justify = "left"
    return table


def _cost_table(answer: Answer) -> Table:
    plan = answer.plan
    shape = plan.shape
    title = f"A training step of the label head, batch {shape.batch:,}, dim {shape.dim:,}"
    memory = f"fits {plan.memory / 2**30:,.0f} GiB"
    table = _table(title, ("loss", "ms", "whole training", "GiB", memory))
    whole = answer.costs.all_labels
    rows = [(HEADINGS[whole.method], whole)]
    rows += [(f"sampled, m = {m:,}", cost) for m, cost in answer.costs.sampled.items()]
    for name, cost in rows:
        minutes = plan.minutes_of(cost)
        ms = "–" if cost.seconds is None else milliseconds(cost.seconds)
        fits = Text("yes") if cost.fits else Text("no", style="red")
        duration = "–" if minutes is None else in_words(minutes)
        table.add_row(name, ms, duration, f"{cost.memory / 2**30:,.2f}", fits)
    table.caption = _cost_caption(plan, whole)
    return table


def _cost_caption(plan: Plan, whole: StepCost) -> str:
    if not plan.here:
        return "Time: not measured, because there is no GPU here. Memory: counted."
    scaled = ""
    if whole.seconds is not None and whole.measured_labels < whole.shape.labels:
        scaled = (
            f" The {HEADINGS[whole.method]} was measured over {whole.measured_labels:,} labels, "
            "and its time scaled with their number, which may be too low by a third."
        )
    points = ""
    if plan.points != plan.shape.batch:
        points = (
            f" The {HEADINGS[whole.method]} takes whole points, about {plan.points:,} per batch."
        )
    return f"Time: measured here, without the encoder. Memory: counted.{points}{scaled}"


def _gap_table(answer: Answer) -> Table:
    unit = "points" if answer.in_points else "percent"
    title = f"Expected gap to {answer.target.name} in Recall@10, {unit}"
    table = _table(title, ("scheme", *NAMES, "largest", "time"))
    # The longest names leave no room to spare in 80 columns.
    table.columns[0].no_wrap = False
    table.columns[0].overflow = "fold"
    table.collapse_padding = True
    for one in answer.advice.candidates:
        style = "bold" if one is answer.advice.best else ""
        gaps = [*(one.gap.by_slice[name] for name in NAMES), one.gap.largest]
        cells = ["..".join(ends(answer.shown(gap), signed=False)) for gap in gaps]
        name = Text(one.scheme + _marks(one, answer), style=style)
        table.add_row(name, *cells, _training(one, answer.plan))
    table.caption = _gap_caption(answer)
    return table


def _marks(one: Candidate, answer: Answer) -> str:
    marks = BEST if one is answer.advice.best else ""
    marks += "" if one.gap.inside else OUTSIDE
    return f" {marks}" if marks else ""


def _training(one: Candidate, plan: Plan) -> Text:
    """How long the label head takes with this scheme."""
    if not one.cost.fits:
        return Text(TOO_BIG, style="red")
    minutes = plan.minutes_of(one.cost)
    if minutes is None:
        return Text("–")
    if minutes > plan.minutes:
        return Text(f"{in_words(minutes)}{TOO_LONG}", style="red")
    return Text(in_words(minutes))


def _gap_caption(answer: Answer) -> str:
    unit = "Points of" if answer.in_points else "Percent of the target's"
    overall = "" if answer.in_points else "overall "
    plan = answer.plan
    candidates = answer.advice.candidates
    caption = (
        f"{unit} {overall}Recall@10, lowest..highest: about four of five gaps were between these "
        "ends on data sets that were left out when the predictions were fitted. Below 0: less "
        "recall than the target. time: of training the label head."
    )
    if answer.advice.best is not None:
        caption += f" {BEST}: recommended."
    if any((plan.minutes_of(one.cost) or 0.0) > plan.minutes for one in candidates):
        caption += f" {TOO_LONG}: longer than {plan.minutes:g} min."
    if any(not one.cost.fits for one in candidates):
        caption += f" {TOO_BIG}: for the memory."
    if any(not one.gap.inside for one in candidates):
        caption += (
            f" {OUTSIDE}: labels per negative outside the range of those data sets "
            f"({LAW.lowest:.0f} to {LAW.highest:.0f}); trust the order of the schemes more than "
            "the numbers."
        )
    return caption
