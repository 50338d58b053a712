"""Sentences of the library, with settings written as the options of a command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from headtail.errors import HeadtailError, PythonName, Sentence, Word
from headtail.schemes import write_name

OTHER_NAMES = {"batch_size": "batch", "num_negatives": "negatives"}
"""Arguments of Python functions, and the options that set them."""

COMMANDS = {
    "headtail.evaluation.predictions.predict": "headtail predict",
    "headtail.implicit.on_model": "--model RUN --data DATA",
    "headtail.training.open_model.open_rows": "headtail predict",
}
"""Functions that sentences recommend, and what to type for them."""


def with_options(sentence: str | HeadtailError, command: type) -> str:
    """A sentence with its settings written as options, where the command has them.

    Other settings stay as in Python, and text that is not a `Sentence` stays as it is.

    >>> from headtail.cli.train import Train
    >>> from headtail.errors import Setting
    >>> with_options(Sentence("Lower ", Setting("lr"), ", or write ", Setting("clip", 1)), Train)
    'Lower `--lr`, or write `--clip 1`'
    >>> with_options(Sentence(Setting("layout"), " is wrong."), Train)
    '`layout` is wrong.'
    """
    if isinstance(sentence, HeadtailError):
        sentence = sentence.sentence
    if not isinstance(sentence, Sentence):
        return sentence
    return sentence.render(lambda word: _write(word, command))


def _write(word: Word, command: type) -> str:
    if isinstance(word, PythonName):
        return f"`{COMMANDS[word.name]}`" if word.name in COMMANDS else write_name(word)
    options = options_of(command)
    name = word.name if word.name in options else OTHER_NAMES.get(word.name, word.name)
    return f"`{as_option(name, word.value)}`" if name in options else str(word)


def as_option(name: str, value: Any = None) -> str:
    """A setting as an option.

    >>> as_option("weight_decay", 0.1), as_option("augment", False)
    ('--weight-decay 0.1', '--no-augment')
    """
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option}" if value is None else f"--{option} {value}"


@cache
def options_of(command: type) -> frozenset[str]:
    """The settings that are options of a command, by their Python names.

    >>> from headtail.cli.audit import Audit
    >>> {"batch", "counts", "slices"} <= options_of(Audit)
    True
    """
    return frozenset(_options(command))


def _options(command: type) -> Iterator[str]:
    hints = get_type_hints(command, include_extras=True)
    for field in fields(command):
        hint = hints[field.name]
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _options(kind)
        elif tyro.conf.Positional not in marks:
            yield field.name
