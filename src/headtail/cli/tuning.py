"""`--tune` of `headtail train` and `headtail compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headtail.cli.console import Console
from headtail.cli.progress import TrainingBars
from headtail.cli.tables import tries_table
from headtail.comparison.compare import Execution
from headtail.comparison.results import TRIES, Try
from headtail.comparison.tune import number_of_tries, tune
from headtail.data.points import DataSet
from headtail.device.choice import Device
from headtail.files.records import read_csv
from headtail.training.config import Training


def tuned(
    data: DataSet,
    schemes: Sequence[str],
    training: Training,
    out: Path,
    device: Device,
    execution: Execution,
    console: Console,
) -> dict[str, Training]:
    """Tune behind bars, and show every try."""
    bars = TrainingBars(console, number_of_tries(training, schemes), type(training))
    watched = replace(execution, callbacks=bars.callbacks, finished=bars.finished)
    with bars.bar:
        how = tune(data, schemes, out=out, training=training, device=device, execution=watched)
    console.print(tries_table(read_csv(out / TRIES, Try)))
    return how
