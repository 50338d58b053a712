"""`headtail train`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from headtail.cli.device import Device, choose
from headtail.cli.notes import notes_on
from headtail.cli.progress import Training as TrainingBars
from headtail.cli.progress import reading
from headtail.cli.recipe import Recipe, with_recipe
from headtail.cli.tables import measures_table
from headtail.cli.unused import check_features, check_negatives, check_validation, typed_negatives
from headtail.comparison.compare import Cell, SliceRule, data_slices, run_cell
from headtail.data.facts import task_of
from headtail.data.load import Reading, load
from headtail.errors import HeadtailError
from headtail.schemes import check_batch, parse
from headtail.training.config import Run


@dataclass(frozen=True)
class Train:
    """Train one model under one scheme, and test it over all labels. The same command again goes on
    where it was stopped.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "synthetic"
    """A folder with training and test files, a training file, or generated data (synthetic,
    synthetic:delicious, …).
    """
    out: Path = Path("run")
    """Folder for the model, its settings and its results."""
    slices: SliceRule = "auto"
    """Head, torso and tail: a third of the examples each (mass), or at least 100 and fewer than 20
    examples a label (count); auto: count for pictures and vectors with one label each, otherwise
    mass.
    """
    device: Device = "auto"
    """Where to train."""
    recipe: Recipe | None = None
    """Train as the paper did on such pictures; what you write beside it counts."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""
    run_: Annotated[Run, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")] = field(
        default_factory=Run
    )
    """What to train, and how."""

    def run(self, typed: Sequence[str] = ()) -> int:
        """Train, test, print; `typed` are the arguments that go on with it."""
        parse(self.run_.scheme)
        settings = with_recipe(self.recipe, self.run_, typed)
        check_batch(settings.scheme, settings.batch, typed_negatives(settings, typed))
        check_negatives(typed, [settings.scheme])
        check_validation(settings, typed)
        device = choose(self.device)
        talk = Console(stderr=True, highlight=False)
        with reading(talk) as progress:
            data = load(self.data, self.reading, progress)
        for note in data.notes:
            talk.print(Text(note, style="dim"))
        check_features(data.train.picture, typed)
        for note in notes_on(data, settings, self.slices, self.recipe, typed):
            talk.print(Text(note, style="dim"))
        cell = Cell(settings, self.out)
        bars = TrainingBars(talk, 1)
        model = self.out / "model.safetensors"
        known = model.exists()
        try:
            with bars.bar, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bars.begin(cell)
                rows = run_cell(
                    cell,
                    data,
                    data_slices(data, self.slices),
                    device=device,
                    watch=bars.watch(cell),
                )
        except KeyboardInterrupt:
            talk.print(
                f"Stopped, and saved. To go on: {shlex.join(['headtail', *typed])}",
                soft_wrap=True,
                markup=False,
            )
            return 130
        except HeadtailError as error:
            if known or not model.exists():
                raise
            kept = (
                f"The trained model is kept: once that is mended, `headtail evaluate {self.out} "
                f"{self.data}` tests it."
            )
            raise HeadtailError(f"{error} {kept}") from error
        console = Console(highlight=False)
        tested = [row for row in rows if row.split == "test"]
        console.print(
            measures_table(
                f"{self.run_.scheme} on {data.name}", tested, console.width, task_of(data)
            )
        )
        console.print(f"model: {model}", soft_wrap=True, markup=False)
        return 0
