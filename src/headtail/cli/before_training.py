"""What `train` and `compare` do before they train: check what was typed, read, and show notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.options import with_options
from headtail.cli.progress import read_data, show_notes
from headtail.cli.unused import (
    check_encoder_options,
    check_features,
    check_negatives,
    check_validation,
    typed_negatives,
)
from headtail.comparison.compare import check_schemes
from headtail.comparison.tune import check_tunable
from headtail.data.points import DataSet
from headtail.files.names import shown
from headtail.training.config import Training
from headtail.training.notes import notes_on, warnings_on


def check_settings(
    settings: Training, schemes: Sequence[str], typed: Sequence[str], tune: bool
) -> None:
    """Refuse what makes no sense before the data are read."""
    check_schemes(schemes, settings, typed_negatives(settings, typed))
    check_negatives(typed, schemes)
    check_encoder_options(settings, typed)
    check_validation(settings, typed)
    if tune:
        check_tunable(settings)


def read_with_notes(
    command: Any,
    settings: Training,
    schemes: Sequence[str],
    typed: Sequence[str],
    device: str,
    console: Console,
) -> DataSet:
    """The data of a command, with what a user should know about them and the settings."""
    data = read_data(command.data, command.reading, console)
    check_features(data.train.image_size, typed)
    show_notes(notes_on(data, settings, schemes, command.slices), type(command), console)
    for note in warnings_on(schemes, settings, data, device):
        console.print(Text(shown(with_options(note, type(command))), style="yellow"))
    return data
