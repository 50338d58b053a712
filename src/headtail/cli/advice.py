"""What `headtail advise` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headtail.cli.bench import HEADINGS, milliseconds
from headtail.core.slices import NAMES
from headtail.data.facts import Kind
from headtail.machine.advise import Advice, Candidate, Costs, Plan
from headtail.machine.fitted import LAW
from headtail.machine.gap_law import Interval
from headtail.machine.step_cost import StepCost
from headtail.machine.target import Target

MINUS = "−"


@dataclass(frozen=True)
class Answer:
    """Everything that was measured, predicted and decided."""

    target: Target
    plan: Plan
    costs: Costs
    advice: Advice
    kind: Kind | None = None

    @property
    def in_points(self) -> bool:
        """Whether gaps are in points; else in shares of the target's recall."""
        return any(one.gap.points for one in self.advice.candidates)


def print_answer(console: Console, answer: Answer) -> None:
    """Tables, the recommendation, how sure it is, and code."""
    plan = answer.plan
    console.print(
        Text(
            f"Target: {answer.target.name}. {plan.epochs} epochs with batch {plan.shape.batch:,} "
            f"are {plan.steps:,} steps, and the label head may take {plan.minutes:g} min in all.",
            style="dim",
        )
    )
    console.print(_cost_table(answer))
    if answer.advice.verdict != "all labels":
        console.print(_gap_table(answer))
    for line in recommendation(answer):
        console.print(Text(line, style="bold"))
    for line in how_sure(answer):
        console.print(Text(line))
    for line in code(answer):
        console.print(Text(line), soft_wrap=True)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
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
    return f"Time: measured here, without the encoder. Memory: counted.{scaled}"


def _gap_table(answer: Answer) -> Table:
    unit = "points" if answer.in_points else "percent of its recall"
    title = f"Expected gap to {answer.target.name} in Recall@10, {unit}"
    table = _table(title, ("scheme", *NAMES, "largest"))
    factor = 1.0 if answer.in_points else 100.0
    for one in answer.advice.candidates:
        style = "bold" if one is answer.advice.best else ""
        cells = [
            "/".join(ends(one.gap.by_slice[name].times(factor), signed=True)) for name in NAMES
        ]
        largest = "/".join(ends(one.gap.largest.times(factor), signed=False))
        table.add_row(Text(one.scheme, style=style), *cells, largest)
    table.caption = (
        "Low/high end: about four of five gaps were between these ends on data sets that were left "
        "out when the predictions were fitted. Below 0: less recall than the target."
    )
    return table


def span(interval: Interval, *, signed: bool) -> str:
    """An interval in few characters.

    >>> span(Interval(-4.21, -1.0, 1.56), signed=True), span(Interval(1.0, 2.0, 13.4), signed=False)
    ('−4.2 to +1.6', '1.0 to 13')
    """
    return " to ".join(ends(interval, signed=signed))


def ends(interval: Interval, *, signed: bool) -> tuple[str, str]:
    """The ends of an interval; what is beyond 100 is not worth more digits."""
    return _digits(interval.low, signed), _digits(interval.high, signed)


def _digits(value: float, signed: bool) -> str:
    value = max(-100.0, min(100.0, value))
    text = f"{value:{'+' if signed else ''}.{1 if abs(value) < 9.95 else 0}f}"
    return text.replace("-", MINUS)


def in_words(minutes: float) -> str:
    """A duration.

    >>> [in_words(m) for m in (0.2, 3.4, 80, 3000, 20_000)]
    ['12 s', '3.4 min', '1.3 h', '50 h', '14 days']
    """
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 60:
        return f"{minutes:.2g} min"
    return f"{minutes / 60:.2g} h" if minutes < 72 * 60 else f"{minutes / 60 / 24:.0f} days"


def recommendation(answer: Answer) -> list[str]:
    """What to use, in a sentence or two."""
    advice = answer.advice
    plan = answer.plan
    whole = answer.costs.all_labels
    minutes = plan.minutes_of(whole)
    loss = f"{answer.target.name} over all labels"
    if advice.verdict == "all labels":
        assert minutes is not None, "it was measured"
        return [
            f"Use {loss}, batch {plan.shape.batch:,}: its label head takes about "
            f"{in_words(minutes)}, and it has no gap."
        ]
    if advice.best is None:
        least = min(cost.memory for cost in answer.costs.sampled.values()) / 2**30
        return [
            f"Nothing fits: even the leanest needs {least:,.1f} GiB. Use a smaller `--dim`, or a "
            "machine with more memory."
        ]
    best = advice.best
    why = "does not fit into memory"
    if whole.fits:
        why = "is not measured here" if minutes is None else f"takes about {in_words(minutes)}"
    lines = [f"The loss over all labels {why}."]
    if advice.verdict == "not measured" and whole.fits:
        lines[0] += " Where its time is affordable, use it: it has no gap. Otherwise:"
    if advice.verdict == "too slow":
        lines[0] += f" No scheme keeps to {plan.minutes:g} minutes; this one comes nearest:"
    return [*lines, f"Use {best.scheme}, batch {plan.shape.batch:,}: {_gap_words(best, answer)}."]


def _gap_words(best: Candidate, answer: Answer) -> str:
    largest = best.gap.largest.times(1.0 if answer.in_points else 100.0)
    between = span(largest, signed=False)
    of = "points of Recall@10" if answer.in_points else "percent of the target's Recall@10"
    return (
        f"its largest gap of head, torso and tail is expected to be {largest.middle:.1f} {of} "
        f"({between} in four of five cases)"
    )


def how_sure(answer: Answer) -> list[str]:
    """How well such predictions did on data that they were not fitted to."""
    best = answer.advice.best
    if best is None:
        return []
    lines = [
        f"How sure: on {LAW.sources} data sets that were left out, the recommended scheme ended "
        f"{LAW.regret:.1f} points farther from its target than the best one on average, and gaps "
        f"were missed by a factor of {LAW.typical:.1f}."
    ]
    if not best.gap.inside:
        lines.append(
            "Your labels per negative lie outside the range of those data sets: trust the order "
            "of the schemes more than the numbers."
        )
    if answer.kind in ("dense", "images"):
        lines.append("None of them holds images or vectors, as your data do.")
    if answer.target.tau not in (0.0, 1.0):
        lines.append("Only τ = 1 was tested; for other values, gaps are interpolated.")
    lines.append(
        f"`headtail compare DATA --schemes {answer.target.name} {best.scheme}` measures the gap."
    )
    return lines


def code(answer: Answer) -> list[str]:
    """How to make the loss."""
    if answer.advice.best is not None:
        return [f'    loss = ht.scheme("{answer.advice.best.scheme}", labels)']
    if answer.advice.verdict != "all labels":
        return []
    shape = answer.plan.shape
    if answer.costs.all_labels.method == "chunked":
        return [
            f"    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size={shape.chunk}, "
            "chunking_method=None)",
            "    loss = torch.nn.functional.linear_cross_entropy(hidden, table, target, "
            "options=options)",
        ]
    return [f'    loss = ht.scheme("{answer.target.name}", labels)']


def answer_dict(answer: Answer) -> dict[str, Any]:
    """For JSON."""
    plan = answer.plan
    best = answer.advice.best
    return {
        "target": answer.target.name,
        "verdict": answer.advice.verdict,
        "scheme": answer.target.name if answer.advice.verdict == "all labels" else None,
        "batch": plan.shape.batch,
        "epochs": plan.epochs,
        "steps": plan.steps,
        "all_labels": asdict(answer.costs.all_labels)
        | {"minutes": plan.minutes_of(answer.costs.all_labels)},
        "candidates": [
            asdict(one) | {"minutes": plan.minutes_of(one.cost)} for one in answer.advice.candidates
        ],
        "tested_on": LAW.sources,
        "missed_by_a_factor_of": LAW.typical,
        "recommendation": recommendation(answer),
        "how_sure": how_sure(answer),
    } | ({} if best is None else {"scheme": best.scheme, "m": best.m})
