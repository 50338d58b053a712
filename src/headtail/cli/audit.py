"""`headtail audit`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated

import torch
import tyro
from rich.progress import track
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.source import DEFAULT_ZIPF, Chosen, Source
from headtail.core.labels import Labels
from headtail.errors import check_count
from headtail.implicit import Audit as Result
from headtail.implicit import audit
from headtail.samplers import Sampler
from headtail.schemes import build_sampler

DIM = 4
"""Size of the random hidden states that are passed to samplers that look at the model."""
DRAWS = (20_000, 5_000)
LABELS = (DEFAULT_ZIPF, 1_000)
"""By default, for samplers that do not look at the model and for those that do, which then take
about 20 seconds.
"""
WAIT = 2.0
"""Seconds after which a line shows the expected time, where a bar cannot be shown."""


@dataclass(frozen=True)
class Audit:
    """Does a sampler draw what it claims? Draws many times and compares with q by a χ² test. Exit
    code 1 if the claim is false.
    """

    sampler: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SAMPLER")]
    """The sampler: uniform, frequency(0.75), log-uniform, within-batch, queue(1024),
    mixture(uniform,within-batch), …
    """
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
    draws: int | None = None
    """Number of independent calls; by default 20000, and 5000 of a sampler that looks at the model.
    """
    batch: int = 64
    """Examples in a batch."""
    negatives: int | None = None
    """Number of negatives m, where the sampler has no @m; by default 256, for within-batch the
    whole batch, for a queue all that it remembers.
    """
    seed: int = 0
    """Seed of the randomness."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> int:
        """Audit and print the verdict."""
        if self.draws is not None:
            check_count("draws", self.draws)
        check_count("batch", self.batch)
        source = self.source
        chosen = source.choose()
        sampler = build_sampler(self.sampler, chosen.labels, self.negatives)
        looks_at_model = sampler.claims.looks_at_model
        if looks_at_model and source.counts is None and source.zipf is None:
            source = replace(source, zipf=LABELS[1])
            chosen = source.choose()
            sampler = build_sampler(self.sampler, chosen.labels, self.negatives)
        draws = DRAWS[looks_at_model] if self.draws is None else self.draws
        result = self._audit(sampler, chosen.labels, draws)
        if self.json:
            facts = {"sampler": self.sampler, "passed": result.passed, **asdict(result)}
            if (names := chosen.labels.names) is not None:
                facts["worst"] = [(names[label], *counts) for label, *counts in result.worst]
            sys.stdout.write(json.dumps(facts, indent=2) + "\n")
            return 0 if result.passed else 1
        console = Console()
        console.print(Text(chosen.about, style="dim"))
        if looks_at_model and (source is not self.source or self.draws is None):
            console.print(Text(self._smaller(source, draws), style="dim"))
        self._show(result, sampler.claims.marginal, chosen, console)
        return 0 if result.passed else 1

    def _audit(self, sampler: Sampler, labels: Labels, draws: int) -> Result:
        generator = torch.Generator().manual_seed(self.seed)
        hidden = table = None
        if sampler.claims.looks_at_model:  # any model will do
            hidden = torch.randn(self.batch, DIM, generator=generator)
            table = torch.randn(labels.num_labels, DIM, generator=generator)
        return audit(
            sampler,
            labels,
            input=hidden,
            weight=table,
            draws=draws,
            batch_size=self.batch,
            generator=generator,
            progress=partial(_bar, draws),
        )

    def _show(self, result: Result, marginal: bool, chosen: Chosen, console: Console) -> None:
        claim = "claims its q" if marginal else "claims that every label counts once on average"
        verdict = Text("true", "bold green3") if result.passed else Text("false", "bold red")
        console.print(Text(f"{self.sampler} {claim}: ") + verdict)
        console.print(
            f"χ² = {result.statistic:,.1f} with {result.freedom:,} degrees of freedom, "
            f"{result.draws:,} draws, p = {result.p_value:.3g}"
        )
        table = Table(
            title="labels that deviate most",
            title_justify="left",
            header_style="bold",
            box=None,
            padding=(0, 2),
        )
        for column in ("label", "drawn", "expected"):
            table.add_column(column, justify="right")
        for label, seen, expected in result.worst:
            table.add_row(Text(chosen.name(label)), f"{seen:,}", f"{expected:,.1f}")
        console.print(table)

    def _smaller(self, source: Source, draws: int) -> str:
        """What is smaller than for other samplers, and the options that make it as large."""
        less = []
        more = []
        if source is not self.source:
            less.append(f"{LABELS[1]:,} labels")
            more.append(f"`--zipf {LABELS[0]}`")
        if self.draws is None:
            less.append(f"{draws:,} draws")
            more.append(f"`--draws {DRAWS[0]}`")
        return (
            f"This sampler looks at the model, which takes longer: {' and '.join(less)} by "
            f"default. More: {' '.join(more)}."
        )


def _bar(draws: int, calls: Iterable[int]) -> Iterator[int]:
    """A bar with the time left; without a terminal, a line once it clearly takes long."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(calls, "drawing", total=draws, console=console, transient=True)
        return
    begun = time.monotonic()
    announced = False
    for done, call in enumerate(calls):
        spent = time.monotonic() - begun
        # nearly done is not worth a line
        if done and spent > WAIT and spent / done * draws > 5 * WAIT and not announced:
            announced = True
            console.print(
                f"drawing {draws:,} times: about {spent / done * draws:,.0f} seconds",
                soft_wrap=True,
            )
        yield call
