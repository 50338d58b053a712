"""Errors in the words of the command line."""

from __future__ import annotations


def in_command_line_words(error: Exception) -> str:
    """What Python users write with `Labels` is an option here."""
    return str(error).replace("`Labels.from_counts(counts, smoothing=1)`", "`--smoothing 1`")
