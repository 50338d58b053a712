"""`headtail evaluate`: how good a trained model is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from headtail.cli.console import Console
from headtail.cli.options import with_options
from headtail.cli.progress import reading, show_notes
from headtail.cli.tables import measures_table
from headtail.comparison.models import model_folder
from headtail.comparison.results import Row
from headtail.comparison.rows import row_of
from headtail.data.facts import task_of
from headtail.data.reading import Reading
from headtail.data.slices import SliceRule, data_slices
from headtail.device.choice import Device, choose_device
from headtail.evaluation.measures import check_measurable, measure_model, unmeasured_rows
from headtail.files.atomic import write_text
from headtail.files.names import shown
from headtail.files.outputs import check_out_file
from headtail.files.records import to_csv
from headtail.training.open_model import OpenedModel, open_model
from headtail.training.run_files import note_if_stopped


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained model over all labels, by slice, on the test points of some data that have
    a label training knows.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a trained model, made by headtail train; or of a comparison, with --scheme."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """The data, as for headtail train."""
    slices: SliceRule = "auto"
    """What counts as head, torso and tail: about a third of the examples each (mass), or labels
    with at least 100, with 20 to 99 and with fewer than 20 examples (count). auto: count for
    images and vectors with one label each, otherwise mass; the same in every command.
    """
    scheme: str | None = None
    """Which model of a comparison, for example within-batch:tail."""
    seed: int | None = None
    """Which seed of that scheme; by default the lowest."""
    out: Path | None = None
    """CSV file for the numbers."""
    device: Device = "auto"
    """Where to compute."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Measure and print."""
        if self.out is not None:
            check_out_file(self.out)
        folder = model_folder(self.model, self.scheme, self.seed)
        model, run, data, _ = open_with_progress(folder, self.data, self.reading, self.device)
        check_measurable(data)
        status = Console(stderr=True)
        show_notes(note_if_stopped(folder), Evaluate, status)
        unmeasured, total = unmeasured_rows(data)
        if unmeasured:
            status.print(
                f"{unmeasured:,} of {total:,} test points have no label that training "
                "knows: they are not measured."
            )
        with status.status(f"scoring {len(data.test):,} points"):
            measures = measure_model(model, data, data_slices(data, self.slices))
        rows = [row_of(run, data, "test", each, name=folder.name) for each in measures]
        if self.out is not None:
            write_text(self.out, to_csv(rows, Row))
        console = Console()
        title = f"{run.scheme} on {data.name}"
        console.print(measures_table(title, rows, console.width, task_of(data)))
        return 0


def open_with_progress(
    folder: Path, data: str, how: Reading, device: Device, only_answers: bool = False
) -> OpenedModel:
    """`open_model` with a progress bar; how the data differ from those of training is printed."""
    console = Console(stderr=True)
    chosen = choose_device(device)
    with reading(console) as progress:
        opened = open_model(
            folder,
            data,
            reading=how,
            progress=progress,
            device=chosen,
            only_answers=only_answers,
        )
    if opened.note is not None:
        console.print(shown(with_options(opened.note, Reading)), soft_wrap=True)
    return opened
