"""Progress bars."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.options import with_options
from headtail.comparison.grid import Cell
from headtail.data.load import load
from headtail.data.points import DataSet, Progress
from headtail.data.reading import Reading
from headtail.files.names import NAME, shown
from headtail.training.callbacks import Callback
from headtail.training.callbacks import Progress as TrainingProgress


@contextmanager
def reading(console: Console) -> Iterator[Progress]:
    """A bar for a reader, shown on terminals only."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with ProgressBar(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("reading", total=1.0)

        def show(what: str, share: float) -> None:
            bar.update(task, description=shown(what, NAME), completed=share)

        yield show


def read_data(data: str, how: Reading, console: Console) -> DataSet:
    """Read data behind a bar, and print its notes."""
    with reading(console) as progress:
        data_set = load(data, how, progress)
    show_notes(data_set.notes, Reading, console)
    return data_set


def show_notes(notes: Iterable[str], options: type, console: Console) -> None:
    """Print sentences a user should see; `options` is the command, or a part of its options."""
    for note in notes:
        console.print(Text(shown(with_options(note, options)), style="dim"))


def stopped(console: Console, command: str) -> None:
    """Print how to go on after Ctrl-C."""
    console.print(f"Stopped, and saved. To go on: {command}", soft_wrap=True)


class TrainingBars:
    """Bars: finished runs, and for each run at work its steps, loss, examples per second and time
    left.

    Args:
        console: where to show them.
        cells: the number of runs.
        command: the class of the command, for the options that its errors name.
    """

    def __init__(self, console: Console, cells: int, command: type) -> None:
        self.console = console
        self.command = command
        self.running = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self.bar = ProgressBar(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.grid = self.bar.add_task("all runs", total=cells, facts="", visible=cells > 1)

    def begin(self, cell: Cell) -> None:
        """Show a cell from now on; its first step, in which a sampler may look at all labels, can
        take long.
        """
        self.running[cell.title] = self.bar.add_task(cell.title, total=None, facts="")

    def callbacks(self, cell: Cell) -> list[Callback]:
        """What shows one cell."""
        return [_CellBar(self, cell)]

    def finished(self, cell: Cell, sentence: str | None) -> None:
        """Advance by one cell; a sentence says why it failed."""
        self.bar.advance(self.grid)
        if cell.title in self.running:
            self.bar.remove_task(self.running.pop(cell.title))
        if sentence is not None:
            self.console.print(
                Text(f"{shown(cell.title, NAME)} failed: ", style="yellow")
                + Text(shown(with_options(sentence, self.command)), style="")
            )
        elif not self.console.is_terminal:
            self.console.print(f"{cell.title}: done")


class _CellBar(Callback):
    """Shows the steps of one run."""

    def __init__(self, bars: TrainingBars, cell: Cell) -> None:
        self.bars = bars
        self.cell = cell
        self.first: tuple[int, float] | None = None

    def on_step(self, progress: TrainingProgress, loss: float) -> None:
        """Show step, loss and speed."""
        now = time.monotonic()
        if self.first is None:
            self.first = progress.step, now
        step, begun = self.first
        speed = (progress.step - step) * self.cell.run.batch / max(1e-9, now - begun)
        self._show(progress)
        if speed:
            facts = f"loss {loss:.3f}  {speed:,.0f} examples/s"
            self.bars.bar.update(self.bars.running[self.cell.title], facts=facts)

    def on_epoch(self, progress: TrainingProgress, metrics: Mapping[str, float]) -> None:
        """Show the steps, which validation may have kept waiting."""
        self._show(progress)

    def _show(self, progress: TrainingProgress) -> None:
        if self.cell.title not in self.bars.running:
            self.bars.begin(self.cell)
        self.bars.bar.update(
            self.bars.running[self.cell.title],
            completed=progress.step,
            total=progress.epochs * progress.steps_per_epoch,
        )
