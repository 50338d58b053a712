"""`headtail bench`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headtail.cli.device import Device, choose
from headtail.comparison.results import check_writable
from headtail.errors import check_count
from headtail.machine.advise import crossover
from headtail.machine.bench import (
    SIZES,
    Machine,
    Method,
    Shape,
    Tell,
    Timing,
    bench_file,
    measure,
    measurements,
    save,
)

BATCHES = {"cpu": 256, "cuda": 1024}
HEADINGS: dict[Method, str] = {
    "exact": "exact softmax",
    "chunked": "chunked exact",
    "sampled": "sampled",
}


@dataclass(frozen=True)
class Bench:
    """How long does a training step of the label head take on this machine, over all labels and on
    sampled negatives?

    Takes about a minute, and is kept in the cache folder, where `headtail advise` looks.
    """

    device: Device = "auto"
    """Where to measure."""
    dim: int = 512
    """Size of the hidden states."""
    batch: int | None = None
    """Examples in a batch; by default 256, and 1024 on a GPU."""
    negatives: int = 256
    """Number of negatives m of the sampled loss, shared by the batch."""
    quick: bool = False
    """Leave out the largest number of labels."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> int:
        """Measure, print and keep."""
        for name in ("dim", "negatives"):
            check_count(f"--{name}", getattr(self, name))
        device = choose(self.device)
        batch = BATCHES[device] if self.batch is None else check_count("--batch", self.batch)
        check_writable(bench_file(device).parent, "Set HEADTAIL_CACHE to a folder that can.")
        sizes = SIZES[:-1] if self.quick else SIZES
        with _bar(measurements(sizes)) as tell:
            found = measure(device, self.dim, batch, self.negatives, sizes, tell)
        kept = save(found)
        if self.json:
            sys.stdout.write(found.to_json())
            return 0
        console = Console(highlight=False)
        console.print(Text(f"{found.name}, torch {found.torch}", style="dim"))
        console.print(_table(found, Shape(sizes[-1], self.dim, batch, self.negatives)))
        console.print(_sentence(found, Shape(sizes[-1], self.dim, batch, self.negatives)))
        console.print(Text(f"kept: {kept}", style="dim"), soft_wrap=True)
        return 0


@contextmanager
def _bar(total: int) -> Iterator[Tell]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("measuring", total=total)
        done = 0

        def tell(what: str) -> None:
            nonlocal done
            bar.update(task, description=what, completed=done)
            done += 1

        yield tell


def _table(found: Machine, shape: Shape) -> Table:
    table = Table(
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        title_style="bold",
        title_justify="left",
    )
    table.title = (
        f"One training step, batch {shape.batch:,}, dim {shape.dim:,}, {shape.negatives:,} "
        "negatives: ms and GiB"
    )
    table.add_column("labels", justify="right", no_wrap=True)
    for heading in [*HEADINGS.values(), "top 10"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for labels in sorted({one.shape.labels for one in found.timings}):
        here = {one.method: one for one in found.timings if one.shape == _at(shape, labels)}
        quickest = min((one.seconds for one in here.values()), default=0.0)
        cells = [_cell(here.get(method), quickest) for method in HEADINGS]
        answers = (
            Text(f"{found.answers[labels]:,.0f}/s")
            if labels in found.answers
            else Text("–", style="dim")
        )
        table.add_row(f"{labels:,}", *cells, answers)
    table.caption_justify = "left"
    table.caption = (
        "Forward, backward and Adagrad, float32; memory: table, state and workspace at the peak.\n"
        f"–: not in this torch, or too slow or too large here.  Copy {found.bandwidth / 1e9:,.0f} "
        "GB/s, "
        f"matrix product {found.rate / 1e9:,.0f} GFLOP/s."
    )
    return table


def _cell(one: Timing | None, quickest: float) -> Text:
    if one is None:
        return Text("–", style="dim")
    shown = Text(milliseconds(one.seconds), style="bold" if one.seconds == quickest else "")
    return shown if one.memory is None else shown + Text(f"  {one.memory / 2**30:.2f}", style="dim")


def _sentence(found: Machine, shape: Shape) -> str:
    labels = crossover(shape, found)
    if labels is None:
        return (
            "The exact loss costs the same at all of these numbers of labels, so none is too many "
            "for it yet."
        )
    fewest = min(one.shape.labels for one in found.timings)
    if labels <= fewest:
        return (
            "The sampled loss is the quicker one at all of these numbers of labels, from "
            f"{fewest:,} on."
        )
    return (
        f"The sampled loss is quicker from about {float(f'{labels:.2g}'):,.0f} labels on; below "
        "that, use the exact one."
    )


def _at(shape: Shape, labels: int) -> Shape:
    return Shape(labels, shape.dim, shape.batch, shape.negatives)


def milliseconds(seconds: float) -> str:
    """Three digits: 0.12, 3.4, 560, 12,300."""
    ms = 1000 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
