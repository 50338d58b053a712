"""Options that would do nothing are refused, so that nobody waits for what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtail.errors import HeadtailError
from headtail.schemes import parse
from headtail.training.config import Training


def refuse(options: Sequence[str], because: str) -> None:
    """Refuse these options, where there are any.

    >>> refuse(["--augment"], "only pictures are cut and mirrored")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `--augment` would do nothing: only pictures are cut and mirrored. Leave it out.
    """
    if options:
        listed = ", ".join(f"`{one}`" for one in options)
        raise HeadtailError(
            f"{listed} would do nothing: {because}. Leave {'it' if len(options) == 1 else 'them'} "
            "out."
        )


def changed(options: Any, *names: str) -> list[str]:
    """Those of these options whose value is not that by default, as they are typed."""
    usual = type(options)()
    return [
        f"--{name.replace('_', '-')}"
        for name in names
        if getattr(options, name) != getattr(usual, name)
    ]


def options_in(typed: Sequence[str]) -> set[str]:
    """The options among the arguments of a command.

    >>> sorted(options_in(["train", "DATA", "--weight_decay=0.1", "--no-augment"]))
    ['--no-augment', '--weight-decay']
    """
    return {arg.partition("=")[0].replace("_", "-") for arg in typed if arg.startswith("--")}


def check_negatives(typed: Sequence[str], schemes: Sequence[str]) -> None:
    """Refuse `--negatives` where no scheme takes its m from it."""
    parsed = {name: parse(name) for name in schemes}
    if all(one.sampler is None or one.num_negatives is not None for one in parsed.values()):
        why = (
            f"{name} {'uses all labels' if one.sampler is None else 'has its own m'}"
            for name, one in parsed.items()
        )
        refuse(_among(typed, "--negatives"), ", ".join(why))


def typed_negatives(settings: Training, typed: Sequence[str]) -> int | None:
    """The number of negatives that somebody asked for; None where it is that by default, which a
    small batch may fall short of.
    """
    return settings.negatives if _among(typed, "--negatives") else None


def check_validation(settings: Training, typed: Sequence[str]) -> None:
    """Refuse ways to look at held-out points where there are none."""
    if settings.validation == 0:
        refuse(
            _among(typed, "--stop-on", "--patience"), "no points are held out (`--validation 0`)"
        )


def check_features(picture: tuple[int, int] | None, typed: Sequence[str]) -> None:
    """Refuse what is only for pictures where there are none, and only for rows of numbers where
    there are.
    """
    if picture is None:
        refuse(_among(typed, "--augment", "--no-augment"), "only pictures are cut and mirrored")
    else:
        only_rows = _among(typed, "--dim", "--normalise", "--no-normalise", "--feature-dropout")
        refuse(only_rows, "a ResNet has its own sizes, and looks at whole pictures")


def _among(typed: Sequence[str], *options: str) -> list[str]:
    return [one for one in options if one in options_in(typed)]
