"""Progress bars."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headtail.compare import Cell
from headtail.data.text import Progress as Reader
from headtail.train import State, Watch


@contextmanager
def reading(console: Console) -> Iterator[Reader]:
    """A bar for a reader, shown on terminals only."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        yield tell


class Training:
    """Two bars: cells of the grid, and steps of the present run with loss, examples a second and time left."""

    def __init__(self, console: Console, cells: int) -> None:
        self.console, self.cells = console, cells
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
        self.bar = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.grid = self.bar.add_task("all runs", total=cells, facts="")
        self.run = self.bar.add_task("", total=1, facts="", visible=False)

    def watch(self, cell: Cell) -> Watch:
        """A watcher for one cell."""
        run, begun, first = cell.run, time.monotonic(), None

        def tell(state: State, steps: int, loss: float) -> None:
            nonlocal first
            done = state.epoch * steps + state.step
            first = done if first is None else first
            speed = (done - first) * run.batch / max(1e-9, time.monotonic() - begun)
            facts = f"loss {loss:.3f}  {speed:,.0f} examples/s" if math.isfinite(loss) else ""
            total = run.epochs * steps
            self.bar.update(self.run, description=cell.title, completed=done, total=total, facts=facts, visible=True)

        self.bar.reset(self.run, description=cell.title, total=1, visible=True)
        return tell

    def over(self, cell: Cell, sentence: str | None) -> None:
        """A cell is over; failures are told at once."""
        self.bar.advance(self.grid)
        if sentence is not None:
            self.console.print(f"[yellow]{cell.title} failed:[/] {sentence}", highlight=False)
        elif not self.console.is_terminal:
            self.console.print(f"{cell.title}: done", highlight=False)
