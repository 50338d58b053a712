"""Trained models on disk: the weights with what is needed to build the model again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headtail.core.columns import Names
from headtail.data.known import Users
from headtail.data.text_features import TextFeatures
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.files.tensors import as_bytes, save_tensors
from headtail.rows.decay import catch_up
from headtail.training import checkpoint
from headtail.training.allocations import BoundedAllocations
from headtail.training.build_model import build_model, with_second_tower
from headtail.training.check_model import (
    check_features,
    check_sizes,
    checked_labels,
    checked_run,
    items_of,
    text_of,
    users_of,
)
from headtail.training.check_saved import Saved
from headtail.training.config import Run, SettledRun

MODEL_FILE = "model.safetensors"
COUNTS = "labels.counts"
"""The examples of each label, in a model's file."""
AGAIN = "Train the model again, or restore the file from a copy."
"""What to do about a model that cannot be used."""


@dataclass(frozen=True, eq=False)
class About:
    """What a run's model is saved with, beside weights and counts.

    Attributes:
        facts: about run and data, which a checkpoint must agree with.
        names: of the labels, or None.
        smoothing: of the counts of labels.
        text: how raw texts become features, where it is trained on texts.
        users: the users of training and what they had, where features are users.
    """

    facts: dict[str, Any]
    names: Names | None
    smoothing: float
    text: TextFeatures | None = None
    users: Users | None = None

    @cached_property
    def _names(self) -> Tensor:
        return as_bytes(self.names)

    def contents(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it as tensors and facts of a file."""
        tensors = {"labels.names": self._names}
        facts = {**self.facts, "smoothing": self.smoothing}
        if self.text is not None:
            tensors |= self.text.tensors()
            facts["text"] = self.text.facts()
        if self.users is not None:
            tensors["users.names"] = as_bytes(self.users.names)
            # Copies, because saved tensors must not share memory with each other.
            tensors["users.had"] = self.users.had.values.clone()
            tensors["users.had_offsets"] = self.users.had.offsets.clone()
        return tensors, facts


def save_model(folder: Path, model: Model, about: About) -> None:
    """Save a model in a run's folder.

    Args:
        folder: of the run.
        model: the model; pending weight decay is applied first.
        about: the rest.
    """
    for parameter in model.parameters():
        catch_up(parameter)
    tensors, facts = about.contents()
    tensors |= checkpoint.weights_of(model) | {COUNTS: model.head.labels.counts}
    save_tensors(folder / MODEL_FILE, tensors, facts)


def load_model(
    folder: str | Path, encoder: nn.Module | None = None
) -> tuple[Model, SettledRun, dict[str, Any]]:
    """The trained model of a run's folder, its settings, and other facts about the run.

    The facts have the names of the labels as `label_names`, None if they had none; runs of an older
    headtail did not save them. A model that was trained on raw texts has as `text` how these become
    features (`TextFeatures`), and one with users as features has them as `users` (`Users`).

    The file is not trusted: whatever contradicts its settings, ids out of range, and weights that
    are not finite are refused, and nothing is allocated that is larger than the file.

    Args:
        folder: of the run.
        encoder: the module that was trained, if it was not one of headtail's.
    """
    path = Path(folder) / MODEL_FILE
    if not path.exists():
        raise HeadtailError(
            f"`{folder}` holds no trained model (`{MODEL_FILE}`). Pass the folder of a finished "
            "run."
        )
    tensors, facts = checkpoint.load(path)
    if not {"run", "smoothing", "num_features"} <= facts.keys() or COUNTS not in tensors:
        raise HeadtailError(f"`{path}` is not a trained model. Pass the folder of a finished run.")
    saved = Saved(path, tensors, facts, AGAIN)
    run = checked_run(saved)
    labels = checked_labels(saved)
    image_size = check_features(saved, labels.num_labels)
    check_sizes(saved, run, labels.num_labels, image_size, encoder)
    items = items_of(saved, labels.num_labels)
    number = facts["num_features"]
    about = {
        "text": text_of(saved, number),
        "users": users_of(saved, number, labels.num_labels),
    }
    with saved.explained("the settings of its run"), BoundedAllocations(tensors.values()):
        model = build_model(
            run, labels, number, image_size=image_size, encoder=encoder, sparse=False
        )
        model = with_second_tower(model, items)
    saved.check_weights(model)
    saved.check_products()
    with saved.explained("the states of its samplers"):
        checkpoint.restore_weights(tensors, model)
    facts |= {name: value for name, value in about.items() if value is not None}
    return model.eval(), run, facts


def settings_of(run: Run) -> dict[str, Any]:
    """A run's settings as they come back from JSON."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(run).items()
    }
