"""Options that would do nothing are refused, so that no one waits for their effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtail.cli.options import as_option
from headtail.errors import HeadtailError
from headtail.schemes import parse
from headtail.training.config import Training
from headtail.training.recipes import OF_ENCODER


def refuse(options: Sequence[str], because: str) -> None:
    """Refuse these options, if there are any.

    >>> refuse(["--augment"], "only images are cropped and mirrored")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `--augment` would do nothing: only images are cropped ...
    """
    if options:
        listed = ", ".join(f"`{option}`" for option in options)
        them = "it" if len(options) == 1 else "them"
        raise HeadtailError(f"{listed} would do nothing: {because}. Leave {them} out.")


def changed(options: Any, *names: str) -> list[str]:
    """Those of these options that differ from their default, as they are typed."""
    usual = type(options)()
    return [as_option(name) for name in names if getattr(options, name) != getattr(usual, name)]


def as_typed(options: Any, *names: str) -> list[str]:
    """Those of these options that differ from their default, with their values.

    >>> from headtail.data.reading import Reading
    >>> reading = Reading(split="random", features=("x", "y"), skip_bad_lines=True)
    >>> as_typed(reading, "split", "features", "skip_bad_lines", "last")
    ['--split', 'random', '--features', 'x', 'y', '--skip-bad-lines']
    """
    usual = type(options)()
    words = []
    for name in names:
        value = getattr(options, name)
        if value == getattr(usual, name):
            continue
        if isinstance(value, bool):
            words.append(as_option(name, value))
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [as_option(name), *map(str, values)]
    return words


def options_in(typed: Sequence[str]) -> set[str]:
    """The options among the arguments of a command.

    >>> sorted(options_in(["train", "DATA", "--weight_decay=0.1", "--no-augment"]))
    ['--no-augment', '--weight-decay']
    """
    return {arg.partition("=")[0].replace("_", "-") for arg in typed if arg.startswith("--")}


def check_negatives(typed: Sequence[str], schemes: Sequence[str]) -> None:
    """Refuse `--negatives` if no scheme takes its m from it."""
    reasons = []
    for name in schemes:
        parsed = parse(name)
        if parsed.sampler is None:
            reasons.append(f"{name} uses all labels")
        elif parsed.num_negatives is not None:
            reasons.append(f"{name} has its own m")
        else:
            return
    refuse(_among(typed, "--negatives"), ", ".join(dict.fromkeys(reasons)))


def typed_negatives(settings: Training, typed: Sequence[str]) -> int | None:
    """The number of negatives if it was typed; None for the default, for which a batch may be too
    small.
    """
    return settings.negatives if _among(typed, "--negatives") else None


def check_validation(settings: Training, typed: Sequence[str]) -> None:
    """Refuse options about held-out points if there are none."""
    if settings.validation == 0:
        refuse(
            _among(typed, "--stop-on", "--patience"), "no points are held out (`--validation 0`)"
        )


def check_features(image_size: tuple[int, int] | None, typed: Sequence[str]) -> None:
    """Refuse options for images with other data, and options for rows of numbers with images."""
    if image_size is None:
        refuse(_among(typed, "--augment", "--no-augment"), "only images are cropped and mirrored")
    else:
        only_rows = _among(typed, "--dim", "--normalise", "--no-normalise", "--feature-dropout")
        refuse(only_rows, "a ResNet has its own sizes, and sees whole images")


def check_encoder_options(settings: Training, typed: Sequence[str]) -> None:
    """Refuse options of other encoders than the one that is used."""
    in_order = ("--layers", "--length", "--tied", "--no-tied")
    if settings.encoder not in OF_ENCODER:
        refuse(
            _among(typed, *in_order, "--heads"),
            "only gru and sasrec (`--encoder`) read sequences in order",
        )
        return
    if settings.encoder == "gru":
        refuse(_among(typed, "--heads"), "only sasrec has attention heads")
    bag = _among(typed, "--last", "--feature-dropout", "--normalise", "--no-normalise")
    refuse(bag, f"{settings.encoder} reads up to `--length` items in order")


def refuse_with_sharded(tune: bool) -> None:
    """Refuse what ranks cannot do together."""
    if tune:
        raise HeadtailError(
            "`--tune` compares many short runs, each in a process of its own. Tune on a part of "
            "the data without `--sharded`, and pass the learning rate that it chooses."
        )


def _among(typed: Sequence[str], *options: str) -> list[str]:
    in_use = options_in(typed)
    return [option for option in options if option in in_use]
