"""`headtail predict`: what a trained model answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from headtail.cli.console import Console
from headtail.cli.evaluate import open_with_progress
from headtail.cli.progress import reading, show_notes
from headtail.cli.unused import changed, refuse
from headtail.comparison.models import model_folder
from headtail.data.points import Points
from headtail.data.reading import Reading
from headtail.device.choice import Device, choose_device
from headtail.encoders import Model
from headtail.errors import check_count, check_number
from headtail.evaluation.predictions import (
    Part,
    check_predictions_file,
    points_of,
    predict,
    write_predictions,
)
from headtail.files.outputs import check_out_file
from headtail.training.open_model import open_rows
from headtail.training.run_files import note_if_stopped

ONLY_FOR_PARTS = ("split", "split_column", "holdout", "min_rating", "profile", "imbalance")
"""Options of `Reading` that decide what is trained and tested on."""


@dataclass(frozen=True)
class Predict:
    """Write the best labels of every row of a file, by name, to a CSV or Parquet file.

    Rows need no labels. A sequence is asked what comes next, a user what else; of data with a test
    part, such as a folder with train and test files, the test part is answered. Columns written:
    point (the row of the input, from 0; of a log with --points test, the row that is tested), user,
    time or path where there is one, rank, label, score.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a trained model, made by headtail train; or of a comparison, with --scheme."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A file of rows in a format that can be trained on, labels or none; or data as for headtail
    train.
    """
    out: Path
    """File to write: .csv or .parquet."""
    k: int | None = None
    """Labels per row; by default 10, or all where there are fewer."""
    scheme: str | None = None
    """Which model of a comparison, for example within-batch:tail."""
    seed: int | None = None
    """Which seed of that scheme; by default the lowest."""
    post_hoc: float | None = None
    """Move answers to rare labels: τ times log π is subtracted from each score, with π the share of
    the label in training. 0 changes nothing, 1 is full logit adjustment.
    """
    points: Part = "auto"
    """Which points: of the test part, also of one that was held out (test), or those trained on
    (train). auto: all rows of a file; of data with a test part, that part.
    """
    device: Device = "auto"
    """Where to compute."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the file."""

    def run(self) -> int:
        """Predict and write."""
        if self.k is not None:
            check_count("k", self.k)
        if self.post_hoc is not None:
            check_number("post_hoc", self.post_hoc, low=0)
        check_predictions_file(self.out)
        check_out_file(self.out)
        folder = model_folder(self.model, self.scheme, self.seed)
        model, points, names = self._open(folder)
        show_notes(note_if_stopped(folder), Predict, Console(stderr=True))
        with Console(stderr=True).status(f"scoring {len(points):,} points"):
            predictions = predict(model, points, self.k, post_hoc=self.post_hoc)
            write_predictions(self.out, predictions, names)
        k = predictions.labels.shape[1]
        Console().print(
            f"{len(points):,} points × {k} labels: {self.out}", soft_wrap=True, markup=False
        )
        return 0

    def _open(self, folder: Path) -> tuple[Model, Points, list[str] | list[int] | None]:
        """The model, the points to answer, and the names of the labels."""
        console = Console(stderr=True)
        if self.points == "auto" and self.reading.test is None:
            device = choose_device(self.device)
            with reading(console) as progress:
                rows = open_rows(
                    folder, self.data, reading=self.reading, progress=progress, device=device
                )
            if rows is not None:
                refuse(changed(self.reading, *ONLY_FOR_PARTS), "every row of the file is answered")
                show_notes(rows.notes, Predict, console)
                return rows.model, rows.points, rows.label_names
        model, _, data, _ = open_with_progress(
            folder, self.data, self.reading, self.device, only_answers=True
        )
        return model, points_of(data, self.points), data.label_names
