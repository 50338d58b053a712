"""`headtail compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.text import Text

from headtail.cli.device import Device, choose
from headtail.cli.notes import notes_on
from headtail.cli.progress import Training as TrainingBars
from headtail.cli.progress import reading
from headtail.cli.recipe import Recipe, with_recipe
from headtail.cli.report import hand_out
from headtail.cli.unused import check_features, check_negatives, check_validation, typed_negatives
from headtail.comparison.compare import SliceRule, cells, compare
from headtail.data.load import Reading, load
from headtail.data.points import DataSet
from headtail.errors import HeadtailError, check_count
from headtail.schemes import PAPER, check_batch, parse
from headtail.training.build_model import encoder_name
from headtail.training.config import Training

DEFAULT = (*PAPER, "softmax", "logit-adjusted")


@dataclass(frozen=True)
class Compare:
    """What does each scheme do to frequent and to rare labels? Trains one model a scheme and seed,
    and shows who gains and loses.

    Resumable: the same command again goes on where it was stopped, and finished runs are not run
        again.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "synthetic"
    """A folder with training and test files, a training file, or generated data (synthetic,
    synthetic:delicious, …).
    """
    schemes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SCHEME …")] = DEFAULT
    """Scheme names, for example within-batch:tail uniform:importance softmax logit-adjusted."""
    seeds: int = 1
    """Runs of each scheme, with seeds 0, 1, …"""
    out: Path = Path("comparison")
    """Folder for results, models and the report."""
    slices: SliceRule = "auto"
    """Head, torso and tail: a third of the examples each (mass), or at least 100 and fewer than 20
    examples a label (count); auto: count for pictures and vectors with one label each, otherwise
    mass.
    """
    device: Device = "auto"
    """Where to train."""
    workers: int | None = None
    """Runs that train at the same time, each in a process of its own; by default one a core, and
    one on a GPU.
    """
    recipe: Recipe | None = None
    """Train as the paper did on such pictures; what you write beside it counts."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=Training)
    """How to train."""

    def run(self, typed: Sequence[str] = ()) -> int:
        """Run the grid, print the table, write the report; `typed` are the arguments that do so
        again.
        """
        names = tuple(dict.fromkeys(self.schemes))
        training = with_recipe(self.recipe, self.training, typed)
        if not names:
            raise HeadtailError(
                "`--schemes` needs at least one name, for example `--schemes within-batch:tail "
                "softmax`."
            )
        for name in names:
            # and a misspelt name: told before any work
            check_batch(name, training.batch, typed_negatives(training, typed))
        check_negatives(typed, names)
        check_validation(training, typed)
        check_count("--seeds", self.seeds)
        workers = None if self.workers is None else check_count("--workers", self.workers)
        device = choose(self.device)
        talk = Console(stderr=True, highlight=False)
        with reading(talk) as progress:
            data = load(self.data, self.reading, progress)
        for note in data.notes:
            talk.print(Text(note, style="dim"))
        check_features(data.train.picture, typed)
        for note in notes_on(data, training, self.slices, self.recipe, typed):
            talk.print(Text(note, style="dim"))
        if device == "cpu" and (note := patience(names, training, data)):
            talk.print(Text(note, style="yellow"))
        # one that does not suit the data is told once, and not by every run
        encoder_name(training, data.train.picture)
        grid = cells(training, names, self.seeds, data, self.out)
        command = shlex.join(["headtail", *typed])
        bars = TrainingBars(talk, len(grid))
        try:
            with bars.bar:
                found = compare(
                    grid,
                    partial(load, self.data, self.reading),
                    self.out,
                    slices=self.slices,
                    device=device,
                    workers=workers or (1 if device == "cuda" else torch.get_num_threads()),
                    command=command,
                    watch=bars.watch,
                    told=bars.over,
                    say=lambda line: talk.print(Text(line, style="dim")),
                    strict="--debug" in typed,
                )
        except KeyboardInterrupt:
            talk.print(f"Stopped, and saved. To go on: {command}", soft_wrap=True, markup=False)
            return 130
        hand_out(found, self.out / "report.html")
        return 1 if found.failures else 0


def patience(schemes: Sequence[str], training: Training, data: DataSet) -> str | None:
    """A note where losses over all labels will take long on a CPU: more than 10¹⁴ operations, about
    an hour of one core.
    """
    exact = [name for name in schemes if parse(name).sampler is None]
    points = data.train.num_pairs if training.batching == "pairs" else len(data.train)
    # a multiplication and an addition, forward and twice backward
    operations = 6.0 * training.dim * data.train.num_labels * points
    if not exact or operations * training.epochs < 1e14:
        return None
    score = "scores" if len(exact) == 1 else "score"
    return (
        f"{' and '.join(exact)} {score} all {data.train.num_labels:,} labels for each of "
        f"{points:,} points: {operations:.0e} "
        "operations an epoch, which takes a CPU long. Use a GPU, or leave them out with "
        "`--schemes`."
    )
