"""`headtail audit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from headtail.build import build_sampler
from headtail.cli.source import Source
from headtail.implicit import audit

DIM = 4
"""Size of the random hidden states that samplers which look at the model are shown."""


@dataclass(frozen=True)
class Audit:
    """Does a sampler draw what it claims? Draws many times and compares with q by a χ² test. Exit code 1 if the claim is false."""

    sampler: Annotated[str, tyro.conf.Positional]
    """The sampler: uniform, frequency(0.75), log-uniform, within-batch, queue(1024), mixture(uniform,within-batch), …"""
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
    draws: int = 20_000
    """Number of independent calls."""
    batch: int = 64
    """Examples in a batch."""
    negatives: int | None = None
    """Number of negatives in a call; by default 256, and all there are for within-batch and queues."""
    seed: int = 0
    """Seed of the randomness."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> int:
        """Audit and print the verdict."""
        labels = self.source.labels()
        sampler = build_sampler(self.sampler, labels, self.negatives)
        console = Console(highlight=False, stderr=True)

        def bar(calls: Iterable[int]) -> Iterable[int]:
            return track(calls, "drawing", total=self.draws, console=console, transient=True, disable=not console.is_terminal)

        generator = torch.Generator().manual_seed(self.seed)
        hidden = table = None
        if sampler.looks_at_model:  # any model will do
            hidden, table = (torch.randn(n, DIM, generator=generator) for n in (self.batch, labels.num_labels))
        options = {"draws": self.draws, "batch_size": self.batch, "generator": generator, "progress": bar}
        found = audit(sampler, labels, input=hidden, weight=table, **options)
        if self.json:
            sys.stdout.write(json.dumps({"sampler": self.sampler, "passed": found.passed, **asdict(found)}, indent=2) + "\n")
            return 0 if found.passed else 1
        out = Console(highlight=False)
        out.print(Text(self.source.describe(labels), style="dim"))
        verdict = Text("true", style="bold green3") if found.passed else Text("false", style="bold red")
        out.print(Text(f"{self.sampler} claims its q: ") + verdict)
        out.print(
            f"χ² = {found.statistic:,.1f} with {found.freedom:,} degrees of freedom, {found.draws:,} draws, p = {found.p_value:.3g}"
        )
        table = Table(title="labels that stand out most", title_justify="left", header_style="bold", box=None, padding=(0, 2))
        for column in ("label", "drawn", "expected"):
            table.add_column(column, justify="right")
        for label, seen, expected in found.worst:
            table.add_row(f"{label:,}", f"{seen:,}", f"{expected:,.1f}")
        out.print(table)
        return 0 if found.passed else 1
