"""`headtail train`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from headtail.cli.before_training import check_settings, read_with_notes
from headtail.cli.console import Console
from headtail.cli.progress import TrainingBars, stopped
from headtail.cli.recipe import Recipe, with_recipe
from headtail.cli.tables import measures_table
from headtail.cli.tuning import tuned
from headtail.cli.unused import refuse_with_sharded
from headtail.collectives.accord import Accord
from headtail.collectives.ranks import Ranks
from headtail.comparison.cautions import cautions_of
from headtail.comparison.cell import run_cell
from headtail.comparison.compare import Execution, check_batches
from headtail.comparison.explained import explain_schemes
from headtail.comparison.grid import Cell
from headtail.comparison.results import TRIES, Comparison, Row, Try
from headtail.comparison.rows import baseline_rows
from headtail.comparison.sharded_cell import run_sharded_cell
from headtail.data.facts import task_of
from headtail.data.points import DataSet
from headtail.data.reading import Reading
from headtail.data.slices import SliceRule, data_slices
from headtail.device.choice import Device, choose_device
from headtail.distributed.processes import choose_device_of_rank, in_turn, joined, refuse_several
from headtail.distributed.shared_folder import check_shared
from headtail.errors import HeadtailError
from headtail.files.atomic import check_writable
from headtail.files.checksums import DamagedWarning
from headtail.files.names import shown
from headtail.files.outputs import check_out_folder
from headtail.files.records import read_csv
from headtail.schemes import parse
from headtail.training.config import Run, SettledRun
from headtail.training.recipes import with_defaults


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
    """What counts as head, torso and tail: about a third of the examples each (mass), or labels
    with at least 100, with 20 to 99 and with fewer than 20 examples (count). auto: count for
    images and vectors with one label each, otherwise mass; the same in every command.
    """
    device: Device = "auto"
    """Where to train."""
    tune: bool = False
    """First choose learning rate and epochs by short runs on held-out training points. All are
    shown and kept in tries.csv.
    """
    sharded: bool = False
    """Spread the label table, and every batch, over the processes that torchrun starts: `torchrun
    --nproc-per-node 4 -m headtail train DATA --sharded`.
    """
    recipe: Recipe | None = None
    """Train as the paper did on such images; explicit options take precedence."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""
    run_: Annotated[Run, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")] = field(
        default_factory=Run
    )
    """What to train, and how."""

    def run(self, typed: Sequence[str] = ()) -> int:
        """Train, test and print.

        Args:
            typed: the arguments of the command, which go on with it.
        """
        if not self.sharded:
            refuse_several()
            return self._run(typed, None, choose_device(self.device))
        refuse_with_sharded(self.tune)
        device = choose_device_of_rank(self.device)
        with joined(device) as ranks:
            return self._run(typed, ranks, device)

    def _run(self, typed: Sequence[str], ranks: Ranks | None, device: Device) -> int:
        first = Accord(ranks).is_first
        check_out_folder(self.out)
        parse(self.run_.scheme)
        settings = with_recipe(self.recipe, self.run_, typed)
        schemes = [settings.scheme]
        check_settings(settings, schemes, typed, self.tune)
        console = Console(stderr=True, quiet=not first)
        read = partial(read_with_notes, self, settings, schemes, typed, device, console)
        data = read() if ranks is None else in_turn(ranks, read)
        if ranks is None:
            check_writable(self.out, "Choose another folder.")
        else:
            check_shared(ranks, self.out)
        try:
            if self.tune:
                execution = Execution(workers=1, command=shlex.join(["headtail", *typed]))
                chosen = tuned(data, schemes, settings, self.out, device, execution, console)
                settings = Run.of(chosen[settings.scheme], settings.scheme, settings.seed)
            rows = self._train(settings, data, ranks, device, console)
        except KeyboardInterrupt:
            again = shlex.join(["headtail", *typed])
            stopped(console, again if ranks is None else f"torchrun … -m {again}")
            return 130
        if first:
            self._show(settings, data, rows)
        return 0

    def _show(self, settings: Run, data: DataSet, rows: list[Row]) -> None:
        console = Console()
        tested = [row for row in rows if row.split == "test"]
        title = f"{self.run_.scheme} on {data.name}"
        console.print(measures_table(title, tested, console.width, task_of(data)))
        for sentence in self._cautions(with_defaults(settings, data), data, rows):
            console.print(Text(shown(sentence), style="yellow"))
        console.print(f"model: {self._model}", soft_wrap=True)

    def _cautions(self, run: SettledRun, data: DataSet, rows: list[Row]) -> list[str]:
        """As those of a comparison of this run alone."""
        by = data_slices(data, self.slices)
        return cautions_of(
            Comparison(
                rows=[*rows, *baseline_rows(data, by)],
                data={"task": task_of(data)},
                schemes=explain_schemes([run], data, by),
                settings={"lr": run.lr, "epochs": run.epochs},
                made_by={},
                failures={},
                tries=read_csv(self.out / TRIES, Try) if self.tune else [],
            )
        )

    @property
    def _model(self) -> Path:
        return self.out / "model.safetensors"

    def _train(
        self, settings: Run, data: DataSet, ranks: Ranks | None, device: str, console: Console
    ) -> list[Row]:
        """The run's rows; an error after training says that the model is kept."""
        cell = Cell(with_defaults(settings, data), self.out)
        check_batches([cell], settings)
        slices = data_slices(data, self.slices)
        if note := cell.note_on_damage():
            console.print(Text(note, style="yellow"))
        bars = TrainingBars(console, 1, Train)
        existed = self._model.exists()
        try:
            with bars.bar, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", DamagedWarning)
                bars.begin(cell)
                callbacks = bars.callbacks(cell)
                run = run_cell if ranks is None else partial(run_sharded_cell, ranks=ranks)
                return run(cell, data, slices, device=device, callbacks=callbacks)
        except HeadtailError as error:
            if existed or not self._model.exists():
                raise
            raise HeadtailError(
                error.sentence,
                " The trained model is kept: once that is fixed, `headtail evaluate "
                f"{self.out} {self.data}` tests it.",
            ) from error
