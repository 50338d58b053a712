"""`headtail explain`."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from typing import Annotated

import tyro
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headtail.cli.advice import span
from headtail.cli.console import Console
from headtail.cli.drawing import HEAD, TAIL, head_to_tail, lean_bar, number
from headtail.cli.on_model import (
    NUMBERS,
    WITH_MODEL,
    OnTrained,
    measured_table,
    to_dict,
    verdict,
    with_name,
)
from headtail.cli.options import with_options
from headtail.cli.source import OWN, Chosen, Source
from headtail.cli.tables import left_out
from headtail.cli.unused import changed, check_negatives, refuse
from headtail.data.reading import Reading
from headtail.device.choice import Device
from headtail.errors import HeadtailError, check_count
from headtail.evaluation.samplers_on_model import ExactTarget
from headtail.implicit import Explanation, explain
from headtail.machine.expect import expected_of_scheme
from headtail.machine.fitted import LAW
from headtail.machine.gap_law import ExpectedGap
from headtail.machine.outside import OUTSIDE
from headtail.schemes import PAPER, check_batch, parse, scheme


@dataclass(frozen=True)
class Explain:
    """What a scheme really optimises and where it leans, before any training; with --model, how
    noisy samplers are on a trained model, and how well they approximate the exact gradient.

    Without a scheme: the paper's table for your labels. Scheme names: SAMPLER:WEIGHTING, for
    example within-batch:tail, frequency(0.75):importance@64, contrastive/uniform:constant; or an
    all-label loss: softmax, logit-adjusted, equalised, adaptive.
    """

    scheme: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SCHEME]")] = None
    """The scheme to explain."""
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None
    """Data as for headtail train: without --model, their labels are looked at; with --model, the
    data of that run.
    """
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
    batch: int | None = None
    """Examples in a batch, which decides the number of within-batch negatives; by default what
    headtail train takes for your data, else 256.
    """
    negatives: int | None = None
    """Number of negatives m, where the scheme has no @m; by default 256, for within-batch the whole
    batch, and with --model 16, 64 and 256 in turn.
    """
    target: ExactTarget | None = None
    """With --model, the loss over all labels that sampling should approximate; by default that of
    the named scheme, or of the run.
    """
    device: Device = "auto"
    """Where to compute, with --model."""
    json: bool = False
    """Print JSON for programs."""
    trained: Annotated[OnTrained, tyro.conf.OmitArgPrefixes] = field(default_factory=OnTrained)
    """A trained model to measure."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Explain and print."""
        self.trained.check(self.data, self.reading, changed(self, "target", "device"))
        if self.scheme is not None:
            check_negatives(changed(self, "negatives"), [self.scheme])
        if self.trained.model is not None:
            return self._on_model()
        if self.batch is not None:
            check_count("batch", self.batch)
        if self.scheme is not None:
            # Reports a misspelt name, too, before any work.
            check_batch(self.scheme, self.batch or sys.maxsize, self.negatives)
        chosen = self.source.choose(self.data, self.reading)
        batch = chosen.batch if self.batch is None else self.batch
        if self.scheme is not None:
            check_batch(self.scheme, batch, self.negatives)
        labels = chosen.labels
        names = PAPER if self.scheme is None else (self.scheme,)
        working = Console(stderr=True).status(
            f"explaining {len(names)} schemes for {labels.num_labels:,} labels"
        )
        with working, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes report the same
            explanations, missing = self._explain_all(names, chosen, batch)
        if self.json:
            rows = [{"scheme": name, **about.to_dict()} for name, about in explanations.items()]
            rows += [{"scheme": name, "left_out": sentence} for name, sentence in missing.items()]
            for row in rows:
                m = row.get("m")
                gap = m and expected_of_scheme(row["scheme"], labels.num_labels, m)
                row["expected_gap"] = asdict(gap) if gap else None
            sys.stdout.write(json.dumps(rows[0] if self.scheme else rows, indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(chosen.about, style="dim"))
        console.print(
            _table(explanations, wide=console.width >= 118)
            if self.scheme is None
            else _panel(self.scheme, explanations[self.scheme], chosen)
        )
        for line in left_out(missing):
            console.print(line)
        return 0

    def _on_model(self) -> int:
        refuse(changed(self.source, *OWN, "smoothing", "slices"), WITH_MODEL)
        options = self.trained
        named = None if self.scheme is None else parse(self.scheme).num_negatives
        m = self.negatives if named is None else named
        numbers = NUMBERS if m is None else (check_count("negatives", m),)
        batch = 256 if self.batch is None else check_count("batch", self.batch)
        wanted = options.settings(self.target, numbers, batch)
        results, missing, about, target = options.measure(
            self.data, self.reading, with_name(wanted, self.scheme), self.device
        )
        missing = {name: with_options(sentence, Explain) for name, sentence in missing.items()}
        if self.json:
            sys.stdout.write(json.dumps(to_dict(results, missing, options.budget), indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(about, style="dim"))
        console.print(measured_table(results, target, console.width))
        for line in left_out(missing):
            console.print(line)
        console.print(Text(verdict(results, options.budget), style="bold"))
        return 0

    def _explain_all(
        self, names: tuple[str, ...], chosen: Chosen, batch: int
    ) -> tuple[dict[str, Explanation], dict[str, str]]:
        """Explanations, and the schemes of the paper's table that these labels do not allow."""
        explanations = {}
        missing = {}
        for name in names:
            try:
                loss = scheme(name, chosen.labels, self.negatives)
                explanations[name] = explain(
                    loss, chosen.labels, batch_size=batch, slices=chosen.slices
                )
            except HeadtailError as error:
                if self.scheme is not None:
                    raise
                missing[name] = with_options(error, Explain)
        return explanations, missing


NEEDLESS = (
    "no gap is predicted: there are only {:,} labels, and a loss over all of them costs no more "
    "than this many negatives and has no noise"
)
UNTRAINED = (
    "How many negatives a trained model needs does not follow from an untrained one.\n"
    "`headtail advise --data DATA` predicts what they change; `headtail explain --model RUN --data "
    "DATA`\nmeasures samplers on a trained model."
)


def _table(explanations: dict[str, Explanation], *, wide: bool) -> Table:
    table = Table(
        title="What each scheme really optimises",
        title_style="bold",
        header_style="bold",
        expand=False,
    )
    columns = ["scheme", "implicit loss", "lean", "untrained noise"]
    if wide:
        columns[2:2] = ["ρ", "head ◂ leans ▸ tail"]
    for column in columns:
        right = column in ("lean", "untrained noise")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=column != "implicit loss"
        )
    scale = max(abs(about.lean) for about in explanations.values()) or 1.0
    previous = None
    for name, about in explanations.items():
        sampler = name.partition(":")[0]
        if previous not in (None, sampler):
            table.add_section()
        previous = sampler
        style = TAIL if about.leans == "tail" else HEAD if about.leans == "head" else ""
        noises = [x.noise_untrained for x in about.examples if x.noise_untrained is not None]
        middle = (about.rho, lean_bar(about.lean, scale, width=9)) if wide else ()
        noise = f"{max(noises):.2g}" if noises else "–"
        table.add_row(
            name,
            Text(about.name or "–", style=style),
            *middle,
            Text(f"{about.lean:+.2f}", style=style),
            noise,
        )
    table.caption = (
        "lean: log ρ(t, h) − log ρ(h, t) of a median tail and head label, in nats; above 0 tail, "
        "below 0 head.\n"
        "untrained noise: standard deviation of the sampled loss while all scores are equal, in "
        f"nats, worst slice.\n{UNTRAINED}"
    )
    return table


def _panel(name: str, about: Explanation, chosen: Chosen) -> Panel:
    style = TAIL if about.leans == "tail" else HEAD if about.leans == "head" else "white"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row(
        "optimises",
        Text(about.name or f"a {about.family} loss with no common name", style=f"bold {style}"),
    )
    facts.add_row("", about.equation)
    lean = (
        "to neither head nor tail"
        if about.leans == "neither"
        else f"to the {about.leans} by {abs(about.lean):.2f} nats"
    )
    facts.add_row("leans", Text(lean, style=style))
    line = head_to_tail(about.margin, chosen.labels)
    if line is not None:
        facts.add_row("favours", Text("head ") + line + Text(" tail"))
    if about.m is not None:
        facts.add_row("negatives", f"m = {about.m:g} effective")
        if about.sampled_share:
            facts.add_row("they fall on", _shares(about.sampled_share))
    # where all scores are 0, the negatives of some losses cost nothing: then q* is 0
    if any(about.optimal_share.values()):
        facts.add_row(
            "untrained q*",
            Text(f"{_shares(about.optimal_share)} (least noise while all scores are equal)"),
        )
    num_labels = chosen.labels.num_labels
    gap = None if about.m is None else expected_of_scheme(name, num_labels, about.m)
    if gap is not None:
        facts.add_row("after training", _expected(gap))
    elif about.m is not None and about.m >= num_labels:
        facts.add_row("after training", NEEDLESS.format(num_labels))
    parts: list[Table | Text] = [facts, Text(), _examples(about, chosen)]
    if about.m is not None:
        parts.append(Text(UNTRAINED, style="dim"))
    if about.m is not None:
        advice = Table.grid(padding=(0, 2))
        advice.add_row(Text("to be unbiased", style="dim"), about.unbiased_with or "–")
        advice.add_row(Text("to be logit-adjusted", style="dim"), about.logit_adjusted_with or "–")
        parts += [Text(), advice]
    parts += [Text(f"Note: {with_options(note, Explain)}", style="yellow") for note in about.notes]
    return Panel(
        Group(*parts),
        title=Text(name, style="bold"),
        border_style=style,
        expand=False,
        padding=(1, 1),
    )


def _examples(about: Explanation, chosen: Chosen) -> Table:
    title = "For an untrained model, with all scores equal"
    table = Table(
        title=title, title_justify="left", title_style="dim", header_style="bold", box=None
    )
    decoupled = about.family != "softmax"
    columns = [
        "slice",
        "label",
        "loss",
        "implicit",
        "bias",
        "variance" if decoupled else "σ²/(mμ²)",
    ]
    columns += [] if decoupled else ["Jensen gap"]
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for x in about.examples:
        cells = [
            x.slice,
            chosen.name(x.label),
            number(x.unsampled_loss),
            number(x.implicit_loss),
            f"{x.bias:+.3g}",
            number(x.squared_error),
        ]
        cells += [] if decoupled else [number(x.jensen_gap)]
        table.add_row(*cells)
    return table


def _expected(gap: ExpectedGap) -> str:
    """The expected gap to the loss over all labels, and how well such predictions did."""
    largest = gap.largest.times(100.0)
    ends = {name: span(part.times(100.0), signed=True) for name, part in gap.by_slice.items()}
    outside = "" if gap.inside else "; your number of labels per negative lies outside their range"
    return (
        f"expected to miss that loss by {largest.middle:.0f}% of its overall Recall@10 in the "
        f"slice where it misses most ({span(largest, signed=False)}% in four of five cases):\n"
        f"{', '.join(f'{name} {text}%' for name, text in ends.items())}.\n"
        f"Such gaps were off by a factor of {LAW.typical:.1f} on average on {LAW.sources} data "
        f"sets that were left out, and of {OUTSIDE.typical:.1f} on {OUTSIDE.sources} from "
        f"elsewhere{outside}"
    )


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
