"""What people should know before they train, of the data together with the settings."""

from __future__ import annotations

from collections.abc import Sequence

from headtail.cli.unused import options_in
from headtail.comparison.compare import SliceRule, data_slices
from headtail.core.slices import NAMES
from headtail.data.points import DataSet
from headtail.training.config import Training
from headtail.training.held_out import split_validation
from headtail.training.recipes import RECIPES


def notes_on(
    data: DataSet, training: Training, slices: SliceRule, recipe: str | None, typed: Sequence[str]
) -> list[str]:
    """Sentences about points that are held out, settings that were not made for pictures, and a
    head that will be empty.
    """
    notes = []
    among, held_out = split_validation(data, training.validation)
    if among is not None and held_out is not None:
        shares = f"{len(held_out):,} of the {len(data.train):,} training points"
        notes.append(
            f"{shares} are held out to choose the epoch; with `--validation 0` all are trained on."
        )
    if (
        data.train.picture is not None
        and recipe is None
        and not options_in(typed) & {"--lr", "--optimiser"}
    ):
        known = ", ".join(f"`{name}`" for name in RECIPES)
        notes.append(
            "Optimiser and learning rate are those for text; those for pictures come with "
            f"`--recipe`: {known}."
        )
    if not bool((data_slices(data, slices).of_label == NAMES.index("head")).any()):
        notes.append(
            "No label has 100 training examples, so the head is empty; `--slices mass` divides "
            "labels by their share."
        )
    return notes
