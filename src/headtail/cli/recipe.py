"""`--recipe`: settings of the paper, or of an encoder; explicit options take precedence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

from headtail.cli.unused import options_in
from headtail.training.config import Training
from headtail.training.recipes import OF_ENCODER, RECIPES

Recipe = Literal["cifar", "imagenet-lt", "inaturalist"]
TrainingT = TypeVar("TrainingT", bound=Training)


def with_recipe(recipe: Recipe | None, settings: TrainingT, typed: Sequence[str]) -> TrainingT:
    """The recipe's settings, except for those among `typed`, the arguments of the command; they
    must not contradict each other. Encoders of sequences bring their own recipe.

    >>> with_recipe("cifar", Training(epochs=2), ["compare", "DATA", "--epochs", "2"]).epochs
    2
    >>> with_recipe("cifar", Training(), ["compare", "DATA"]).epochs
    256
    >>> with_recipe(None, Training(encoder="sasrec"), ["train", "DATA", "--encoder", "sasrec"]).dim
    64
    """
    make = OF_ENCODER.get(settings.encoder) if recipe is None else RECIPES[recipe]
    if make is None:
        settings.check_together()
        return settings
    options = options_in(typed)
    explicit = {field.name for field in fields(Training) if options & _options(field.name)}
    values: dict[str, Any] = vars(make()).copy()
    # A recipe's momentum and drops are for its own optimiser and schedule.
    if "optimiser" in explicit:
        values["momentum"] = 0.0
    if "schedule" in explicit:
        values["drops"] = ()
    values |= {name: getattr(settings, name) for name in explicit}
    merged = replace(settings, **values)
    merged.check_together()
    return merged


def _options(field: str) -> set[str]:
    option = field.replace("_", "-")
    return {f"--{option}", f"--no-{option}"}
