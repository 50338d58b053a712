"""`headtail compare`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.text import Text

from headtail.cli.before_training import check_settings, read_with_notes
from headtail.cli.console import Console
from headtail.cli.progress import TrainingBars, stopped
from headtail.cli.recipe import Recipe, with_recipe
from headtail.cli.report import publish
from headtail.cli.tuning import tuned
from headtail.comparison.compare import DEFAULT_SCHEMES, Execution, compare
from headtail.comparison.engines import EngineName, check_engine
from headtail.data.reading import Reading
from headtail.data.slices import SliceRule
from headtail.device.choice import Device, choose_device
from headtail.errors import HeadtailError, check_count
from headtail.files.names import shown
from headtail.files.outputs import check_out_folder
from headtail.training.config import Training


@dataclass(frozen=True)
class Compare:
    """What does each scheme do to frequent and to rare labels? Trains a model per scheme and seed,
    and shows which labels gain and lose.

    Resumable: the same command again goes on where it was stopped, and finished runs are not run
        again.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "synthetic"
    """A folder with training and test files, a training file, or generated data (synthetic,
    synthetic:delicious, …).
    """
    schemes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SCHEME …")] = DEFAULT_SCHEMES
    """Scheme names, for example within-batch:tail uniform:importance softmax logit-adjusted."""
    seeds: int = 1
    """Runs of each scheme, with seeds 0, 1, …"""
    out: Path = Path("comparison")
    """Folder for results, models and the report."""
    slices: SliceRule = "auto"
    """What counts as head, torso and tail: about a third of the examples each (mass), or labels
    with at least 100, with 20 to 99 and with fewer than 20 examples (count). auto: count for
    images and vectors with one label each, otherwise mass; the same in every command.
    """
    device: Device = "auto"
    """Where to train."""
    workers: int | None = None
    """Runs that train at the same time, each in its own process; by default one per core if
    the work takes more than about ten seconds, and one on a GPU.
    """
    engine: EngineName = "processes"
    """Where runs train: in processes of this machine, or as tasks of Ray, on the cluster that
    RAY_ADDRESS names or on one that is started here. Results are the same.
    """
    tune: bool = False
    """First choose learning rate and epochs of each scheme by short runs on held-out training
    points: the same number for every scheme. All are shown and kept in tries.csv.
    """
    recipe: Recipe | None = None
    """Train as the paper did on such images; explicit options take precedence."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=Training)
    """How to train."""

    def run(self, typed: Sequence[str] = ()) -> int:
        """Run the grid, print the table and write the report.

        Args:
            typed: the arguments of the command, which do the same again.
        """
        training = with_recipe(self.recipe, self.training, typed)
        self._check(training, typed)
        device = choose_device(self.device)
        console = Console(stderr=True)
        data = read_with_notes(self, training, self.schemes, typed, device, console)
        command = shlex.join(["headtail", *typed])
        execution = Execution(
            workers=self._workers(device),
            engine=self.engine,
            if_it_pays=self.workers is None,
            strict="--debug" in typed,
            command=command,
            note=lambda line: console.print(Text(shown(line), style="dim")),
        )
        bars = TrainingBars(console, len(set(self.schemes)) * self.seeds, Compare)
        how: Training | dict[str, Training] = training
        try:
            if self.tune:
                how = tuned(data, self.schemes, training, self.out, device, execution, console)
            execution = replace(execution, callbacks=bars.callbacks, finished=bars.finished)
            with bars.bar:
                comparison = compare(
                    data,
                    self.schemes,
                    seeds=self.seeds,
                    out=self.out,
                    training=how,
                    slices=self.slices,
                    device=device,
                    execution=execution,
                )
        except KeyboardInterrupt:
            stopped(console, command)
            return 130
        publish(comparison, self.out / "report.html")
        return 1 if comparison.failures else 0

    def _workers(self, device: str) -> int | None:
        """Runs at the same time; None for as many as a cluster takes."""
        if self.workers is not None or self.engine == "ray":
            return self.workers
        return 1 if device == "cuda" else torch.get_num_threads()

    def _check(self, training: Training, typed: Sequence[str]) -> None:
        """Refuse what makes no sense before the data are read."""
        check_out_folder(self.out)
        for name in self.schemes:
            if "," in name.partition("(")[0]:
                apart = name.replace(",", " ")
                raise HeadtailError(f"Write spaces between schemes: `--schemes {apart}`.")
        check_settings(training, self.schemes, typed, self.tune)
        check_count("seeds", self.seeds)
        if self.workers is not None:
            check_count("workers", self.workers)
        if self.engine == "ray":
            # What Ray prints about lost workers would be in the way of the bars.
            os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        check_engine(self.engine)
