"""`headtail train`."""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from headtail.build import parse
from headtail.cli.device import Device, choose
from headtail.cli.progress import Training as TrainingBars
from headtail.cli.progress import reading
from headtail.cli.tables import measures_table
from headtail.compare import Cell, SliceRule, data_slices, run_cell
from headtail.config import Run
from headtail.data.load import Reading, load
from headtail.train import Stopped


@dataclass(frozen=True)
class Train:
    """Train one model under one scheme, and test it over all labels. The same command again goes on where it was stopped."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "synthetic"
    """A folder with training and test files, a training file, or generated data (synthetic, synthetic:delicious, …)."""
    out: Path = Path("run")
    """Folder for the model, its settings and its results."""
    slices: SliceRule = "mass"
    """Head, torso and tail: a third of the examples each (mass), or at least 100 and fewer than 20 examples a label (count)."""
    device: Device = "auto"
    """Where to train."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""
    run_: Annotated[Run, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")] = field(default_factory=Run)
    """What to train, and how."""

    def run(self) -> int:
        """Train, test, print."""
        parse(self.run_.scheme)
        device, talk = choose(self.device), Console(stderr=True, highlight=False)
        with reading(talk) as progress:
            data = load(self.data, self.reading, progress)
        for note in data.notes:
            talk.print(Text(note, style="dim"))
        cell, bars = Cell(self.run_, self.out), TrainingBars(talk, 1)
        try:
            with bars.bar, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = run_cell(cell, data, data_slices(data, self.slices), device=device, watch=bars.watch(cell))
        except Stopped:
            talk.print(f"Stopped, and saved. To go on: headtail {shlex.join(sys.argv[1:])}")
            return 130
        console = Console(highlight=False)
        console.print(measures_table(f"{self.run_.scheme} on {data.name}", [row for row in rows if row.split == "test"]))
        console.print(f"model: {self.out / 'model.safetensors'}", soft_wrap=True)
        return 0
