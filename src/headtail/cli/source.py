"""Where the command line gets its labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headtail.cli import progress as progress_bars
from headtail.cli.console import Console
from headtail.cli.progress import read_data
from headtail.cli.unused import changed, refuse
from headtail.core.labels import Labels
from headtail.core.slices import SliceRule, Slices
from headtail.data.counts import count_labels, read_counts
from headtail.data.facts import kind_of, label_counts
from headtail.data.points import DataSet
from headtail.data.reading import DEFAULTS, Reading
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError, check_count
from headtail.files.names import NAME, shown
from headtail.training.recipes import DEFAULTS as TRAINED_WITH
from headtail.training.recipes import batch_for

DEFAULT_ZIPF = 10_000
OWN = ("counts", "column", "zipf", "exponent")
"""Options that describe labels without data."""


class Chosen(NamedTuple):
    """Labels to look at, and how they are divided.

    Attributes:
        labels: their frequencies.
        slices: head, torso and tail.
        about: where they come from, in a line to show.
        data: the data that they are the labels of, or None.
    """

    labels: Labels
    slices: Slices
    about: str
    data: DataSet | None = None

    @property
    def batch(self) -> int:
        """The batch that training takes for these data; 256 without data."""
        if self.data is None:
            return 256
        return batch_for(TRAINED_WITH[kind_of(self.data)], int(self.labels.total))

    def name(self, label: int) -> str:
        """A label as people know it."""
        names = self.labels.names
        return f"{label:,}" if names is None else shown(names[label], NAME)


@dataclass(frozen=True)
class Source:
    """Which labels."""

    counts: Path | None = None
    """File with the number of training examples of each label: .npy, or text with one number per
    line; or with --column, a table of examples (a file or a folder of shards) to count.
    """
    column: str | None = None
    """With --counts TABLE: the column of labels. Of a folder, the column that is called so, or that
    of items, is counted without this option."""
    zipf: int | None = None
    """Instead of a file: this many generated labels that follow Zipf's law (10000 if nothing else
    is given).
    """
    exponent: float = 1.0
    """Steepness of the generated labels."""
    smoothing: float | None = None
    """Pseudo-count added to every label; by default 0, but with DATA 1 if some label never occurs,
    as in training.
    """
    slices: SliceRule = "auto"
    """What counts as head, torso and tail: about a third of the examples each (mass), or labels
    with at least 100, with 20 to 99 and with fewer than 20 examples (count). auto: count for
    images and vectors with one label each, otherwise mass; the same in every command.
    """

    def choose(self, data: str | None = None, reading: Reading = DEFAULTS) -> Chosen:
        """The labels of these data; without data, those that the options describe."""
        if data is None:
            return self._described(reading)
        return self._of(data, reading)

    def _of(self, path: str, reading: Reading) -> Chosen:
        refuse(changed(self, *OWN), "the labels are those of `--data`")
        data = read_data(path, reading, Console(stderr=True))
        counts = label_counts(data)
        smoothing = float((counts == 0).any()) if self.smoothing is None else self.smoothing
        labels = Labels.from_counts(counts, smoothing, data.label_names)
        return _chosen(labels, data.name, data_slices(data, self.slices), data)

    def _described(self, reading: Reading) -> Chosen:
        labels = self.labels(reading)
        about = str(self.counts) if self.counts else f"generated, Zipf exponent {self.exponent:g}"
        return _chosen(labels, about, Slices.by(self.slices, labels.counts))

    def labels(self, reading: Reading = DEFAULTS) -> Labels:
        """Read or generate them; of how tables are read, the limits count."""
        if self.counts is not None and self.zipf is not None:
            raise HeadtailError("`--counts` and `--zipf` exclude each other: drop one.")
        if self.counts is not None:
            refuse(changed(self, "exponent"), "the labels of `--counts` are not generated")
            labels = self._counted(self.counts, reading)
            if labels.num_labels == 1:
                raise HeadtailError(
                    f"{self.counts} holds 1 label, which has no negatives. Count at least 2."
                )
            return labels
        refuse(changed(self, "column"), "there is no table of `--counts`")
        number = check_count("zipf", DEFAULT_ZIPF if self.zipf is None else self.zipf)
        if number == 1:
            raise HeadtailError(
                "`--zipf` must be at least 2, but got 1: a single label has no negatives."
            )
        return Labels.from_counts(Labels.zipf(number, self.exponent).counts, self.smoothing or 0.0)

    def _counted(self, path: Path, reading: Reading) -> Labels:
        limits = {"max_memory": reading.max_memory, "max_seconds": reading.max_seconds}
        smoothing = self.smoothing or 0.0
        if self.column is None and not path.is_dir():
            return _read_counts(path, smoothing, limits)
        with progress_bars.reading(Console(stderr=True)) as progress:
            return count_labels(
                path,
                self.column,
                smoothing,
                progress,
                **limits,
                max_expansion=reading.max_expansion,
            )


def _read_counts(path: Path, smoothing: float, limits: dict[str, float | None]) -> Labels:
    """Read a file of counts; what is none may be a table, whose labels must be counted first."""
    try:
        return read_counts(path, smoothing, **limits)
    except HeadtailError as error:
        if path.suffix == ".npy" or not path.is_file():
            raise
        raise HeadtailError(
            error.sentence, " To count the labels of a table of examples, add `--column NAME`."
        ) from error


def _chosen(labels: Labels, name: str, slices: Slices, data: DataSet | None = None) -> Chosen:
    number = f"{labels.num_labels:,} labels ({name}), {labels.total:,.0f} examples"
    return Chosen(labels, slices, shown(f"{number}: {slices.describe(labels.counts)}"), data)
