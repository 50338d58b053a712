"""`headtail bench`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.device.choice import Device, choose_device
from headtail.errors import check_count
from headtail.machine.bench import SIZES, Effort, Report, measure, measurements
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import Method, Shape

BATCHES = {"cpu": 256, "cuda": 1024}
HEADINGS: dict[Method, str] = {
    "exact": "exact softmax",
    "chunked": "chunked exact",
    "sampled": "sampled",
}
EFFORT = Effort()


@dataclass(frozen=True)
class Bench:
    """How long does a training step of the label head take on this machine, over all labels and on
    sampled negatives?

    Takes about a minute. `headtail advise` measures the steps of your own training.
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
        """Measure and print."""
        for name in ("dim", "negatives"):
            check_count(name, getattr(self, name))
        device = choose_device(self.device)
        batch = BATCHES[device] if self.batch is None else check_count("batch", self.batch)
        sizes = SIZES[:-1] if self.quick else SIZES
        with _bar(measurements(sizes)) as report:
            machine = measure(device, self.dim, batch, self.negatives, sizes, report, EFFORT)
        if self.json:
            sys.stdout.write(machine.to_json())
            return 0
        shape = Shape(sizes[-1], self.dim, batch, self.negatives)
        console = Console()
        console.print(Text(f"{machine.name}, torch {machine.torch}", style="dim"))
        console.print(_table(machine, shape))
        console.print(_sentence(machine))
        return 0


@contextmanager
def _bar(total: int) -> Iterator[Report]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("measuring", total=total)
        done = 0

        def report(what: str) -> None:
            nonlocal done
            bar.update(task, description=what, completed=done)
            done += 1

        yield report


def _table(machine: Machine, shape: Shape) -> Table:
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
    for labels in sorted({timing.shape.labels for timing in machine.timings}):
        at = replace(shape, labels=labels)
        by_method = {timing.method: timing for timing in machine.timings if timing.shape == at}
        fastest = min((timing.seconds for timing in by_method.values()), default=0.0)
        cells = [_cell(by_method.get(method), fastest) for method in HEADINGS]
        speed = machine.answers.get(labels)
        answers = Text("–", style="dim") if speed is None else Text(f"{speed:,.0f}/s")
        table.add_row(f"{labels:,}", *cells, answers)
    table.caption_justify = "left"
    table.caption = (
        "Forward, backward and Adagrad, float32; memory: table, state and workspace at the peak.\n"
        "–: not in this torch, or too slow or too large here.  "
        f"Copy {machine.bandwidth / 1e9:,.0f} GB/s, "
        f"matrix product {machine.rate / 1e9:,.0f} GFLOP/s."
    )
    return table


def _cell(timing: Timing | None, fastest: float) -> Text:
    if timing is None:
        return Text("–", style="dim")
    style = "bold" if timing.seconds == fastest else ""
    time = Text(milliseconds(timing.seconds), style=style)
    if timing.memory is None:
        return time
    return time + Text(f"  {timing.memory / 2**30:.2f}", style="dim")


def _sentence(machine: Machine) -> str:
    """From how many of the labels that were measured the sampled loss is faster."""
    seconds = {(timing.method, timing.shape.labels): timing.seconds for timing in machine.timings}
    exact = sorted(labels for method, labels in seconds if method == "exact")
    slower = [n for n in exact if seconds["exact", n] <= seconds["sampled", n]]
    if not slower:
        return (
            f"The sampled loss is faster at all of these numbers of labels, from {exact[0]:,} on."
        )
    faster = [n for n in exact if n > slower[-1]]
    if not faster:
        return f"The exact loss is as fast as the sampled one up to {slower[-1]:,} labels: use it."
    return (
        f"The sampled loss is faster at {faster[0]:,} labels, and not yet at {slower[-1]:,}: "
        "there, use the exact loss."
    )


def milliseconds(seconds: float) -> str:
    """Three digits: 0.12, 3.4, 560, 12,300."""
    ms = 1000 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
