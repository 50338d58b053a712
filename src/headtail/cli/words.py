"""Errors in the words of the command line."""

from __future__ import annotations

import re
from dataclasses import fields

from headtail.config import Training
from headtail.data.load import Reading

AMBIGUOUS = ("test", "format", "split")  # words that sentences also use for other things
OPTIONS = {field.name for kind in (Training, Reading) for field in fields(kind)} - set(AMBIGUOUS)


def in_command_line_words(error: Exception | str) -> str:
    """What Python users write as an argument is an option here.

    >>> in_command_line_words("Try a smaller `lr` than 10, or `clip=1`.")
    'Try a smaller `--lr` than 10, or `--clip 1`.'
    """
    text = str(error).replace("`Labels.from_counts(counts, smoothing=1)`", "`--smoothing 1`")
    return re.sub(r"`(\w+)(?:=([^`]*))?`", _option, text)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    if name not in OPTIONS:
        return found[0]
    return f"`--{name.replace('_', '-')}{'' if value is None else f' {value}'}`"
