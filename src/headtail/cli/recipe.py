"""`--recipe`: settings of the paper, where the user has typed no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

from headtail.cli.unused import options_in
from headtail.training.config import Training
from headtail.training.recipes import RECIPES

Recipe = Literal["cifar", "imagenet-lt", "inaturalist"]
Settings = TypeVar("Settings", bound=Training)


def with_recipe(recipe: Recipe | None, settings: Settings, typed: Sequence[str]) -> Settings:
    """The recipe's settings, except for those among `typed`, the arguments of the command; all
    checked beside each other.

    >>> with_recipe("cifar", Training(epochs=2), ["compare", "DATA", "--epochs", "2"]).epochs
    2
    >>> with_recipe("cifar", Training(), ["compare", "DATA"]).epochs
    256
    """
    if recipe is None:
        settings.check_together()
        return settings
    named = options_in(typed)
    own = {
        field.name
        for field in fields(Training)
        if named & {f"--{_option(field.name)}", f"--no-{_option(field.name)}"}
    }
    values: dict[str, Any] = {
        field.name: getattr(RECIPES[recipe](), field.name) for field in fields(Training)
    }
    belongs = {"momentum": ("optimiser", 0.0), "drops": ("schedule", ())}  # and goes with it
    values |= {name: default for name, (owner, default) in belongs.items() if owner in own}
    values |= {name: getattr(settings, name) for name in own}
    found = replace(settings, **values)
    found.check_together()
    return found


def _option(name: str) -> str:
    return name.replace("_", "-")
