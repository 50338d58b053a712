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
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from headtail.cli.source import DEFAULT_ZIPF, Source
from headtail.errors import check_count
from headtail.implicit import audit
from headtail.schemes import build_sampler

DIM = 4
"""Size of the random hidden states that samplers which look at the model are shown."""
DRAWS = (20_000, 5_000)
LABELS = (DEFAULT_ZIPF, 1_000)
"""Unless told otherwise, of samplers that do not look at the model and of those that do, which take
about 20 seconds then.
"""
WAIT = 2.0
"""Seconds after which a reader who sees no bar is told how long it takes."""


@dataclass(frozen=True)
class Audit:
    """Does a sampler draw what it claims? Draws many times and compares with q by a χ² test. Exit
    code 1 if the claim is false.
    """

    sampler: Annotated[str, tyro.conf.Positional]
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
        draws = None if self.draws is None else check_count("draws", self.draws)
        check_count("batch", self.batch)
        source = self.source
        labels = self.source.labels()
        sampler = build_sampler(self.sampler, labels, self.negatives)
        if sampler.claims.looks_at_model and source.counts is None and source.zipf is None:
            source = replace(source, zipf=LABELS[1])
            labels = source.labels()
            sampler = build_sampler(self.sampler, labels, self.negatives)
        draws = DRAWS[sampler.claims.looks_at_model] if draws is None else draws
        generator = torch.Generator().manual_seed(self.seed)
        hidden = table = None
        if sampler.claims.looks_at_model:  # any model will do
            hidden, table = (
                torch.randn(n, DIM, generator=generator) for n in (self.batch, labels.num_labels)
            )
        options = {
            "draws": draws,
            "batch_size": self.batch,
            "generator": generator,
            "progress": partial(_bar, draws),
        }
        found = audit(sampler, labels, input=hidden, weight=table, **options)
        if self.json:
            sys.stdout.write(
                json.dumps(
                    {"sampler": self.sampler, "passed": found.passed, **asdict(found)}, indent=2
                )
                + "\n"
            )
            return 0 if found.passed else 1
        out = Console(highlight=False)
        out.print(Text(source.describe(labels), style="dim"))
        if sampler.claims.looks_at_model and (source is not self.source or self.draws is None):
            out.print(Text(self._smaller(source, draws), style="dim"))
        verdict = (
            Text("true", style="bold green3") if found.passed else Text("false", style="bold red")
        )
        claim = (
            "claims its q"
            if sampler.claims.marginal
            else "claims that every label counts once on average"
        )
        out.print(Text(f"{self.sampler} {claim}: ") + verdict)
        out.print(
            f"χ² = {found.statistic:,.1f} with {found.freedom:,} degrees of freedom, "
            f"{found.draws:,} draws, p = {found.p_value:.3g}"
        )
        table = Table(
            title="labels that stand out most",
            title_justify="left",
            header_style="bold",
            box=None,
            padding=(0, 2),
        )
        for column in ("label", "drawn", "expected"):
            table.add_column(column, justify="right")
        for label, seen, expected in found.worst:
            table.add_row(f"{label:,}", f"{seen:,}", f"{expected:,.1f}")
        out.print(table)
        return 0 if found.passed else 1

    def _smaller(self, source: Source, draws: int) -> str:
        """What was made smaller than for other samplers, and how to ask for as much."""
        less = [f"{LABELS[1]:,} labels"] * (source is not self.source) + [f"{draws:,} draws"] * (
            self.draws is None
        )
        more = [f"`--zipf {LABELS[0]}`"] * (source is not self.source) + [
            f"`--draws {DRAWS[0]}`"
        ] * (self.draws is None)
        return (
            f"This sampler looks at the model, which takes longer: {' and '.join(less)} by "
            f"default. More: {' '.join(more)}."
        )


def _bar(draws: int, calls: Iterable[int]) -> Iterator[int]:
    """A bar with the time left; where nobody sees one, a line once it is known that this takes a
    while.
    """
    console = Console(highlight=False, stderr=True)
    if console.is_terminal:
        yield from track(calls, "drawing", total=draws, console=console, transient=True)
        return
    begun = time.monotonic()
    told = False
    for done, call in enumerate(calls):
        spent = time.monotonic() - begun
        # nearly done is not worth a line
        if done and spent > WAIT and spent / done * draws > 5 * WAIT and not told:
            told = True
            console.print(
                f"drawing {draws:,} times: about {spent / done * draws:,.0f} seconds",
                soft_wrap=True,
            )
        yield call
