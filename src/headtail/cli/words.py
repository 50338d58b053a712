"""Errors in the words of the command line."""

from __future__ import annotations

import re
from dataclasses import fields

from headtail.data.reading import Reading
from headtail.schemes import MARGINS, SAMPLERS, WEIGHTINGS
from headtail.training.config import Run

AMBIGUOUS = ("test", "format", "split")  # words that sentences also use for other things
OPTIONS = {
    field.name: field.name
    for kind in (Run, Reading)
    for field in fields(kind)
    if field.name not in AMBIGUOUS
}
OPTIONS["batch_size"] = "batch"
OPTIONS |= {
    name: name for name in ("device", "k", "out", "recipe", "schemes", "seeds", "slices", "workers")
}
NAMES = {
    "".join(word.capitalize() for word in name.split("-")): name
    for name in (*SAMPLERS, *WEIGHTINGS, *MARGINS)
}
NAMES["ModelSoftmax"] = NAMES.pop("Model")
NAMES["InfoNCE"] = NAMES.pop("Infonce")
"""What a class is called in a scheme."""
PHRASES = {
    "`Labels.from_counts(counts, smoothing=1)`": "`--smoothing 1`",
    "Pass `Labels.from_counts(counts)`.": "Write one count a label.",
    "train with an unbiased loss, or write `topk(…, correct_twice=True)` if you mean it": (
        "or train with a loss that leans to neither, for example `softmax+post-hoc`"
    ),
    "pass these images as `test`": "these with `--test`: `headtail predict RUN DATA --test IMAGES`",
    "`post_hoc`": "`+post-hoc`",
    "`exclude_target=True`": "`excluded`",
    "`num_negatives`": "`@m`",
} | {f"`{name}` would": f"`--{name}` would" for name in AMBIGUOUS}
"""What only Python users can write, and what stands for it here."""
AS_TYPED = r"Did you mean [^?]*\?|`[^`]*` (?=in `|is no )"
"""What people typed, or may type, stays as it is: `model` is a sampler in a scheme, and a setting
in a file.
"""


def in_command_line_words(error: Exception | str) -> str:
    """What Python users write as an argument is an option here.

    >>> in_command_line_words("Try a smaller `lr` than 10, or `clip=1`.")
    'Try a smaller `--lr` than 10, or `--clip 1`.'
    >>> in_command_line_words("`modell` is no sampler. Did you mean `model`?")
    '`modell` is no sampler. Did you mean `model`?'
    """
    text = str(error)
    for python, here in PHRASES.items():
        text = text.replace(python, here)
    return re.sub(rf"{AS_TYPED}|`(\w+)(?:=([^`]*)|\([^`]*\))?`", _word, text)


def _word(found: re.Match[str]) -> str:
    name, value = found.groups()
    if name in NAMES:
        return f"`{NAMES[name]}`"
    if name == "num_negatives" and value is not None:
        return f"`@{value}`"
    if name not in OPTIONS or found[0].endswith(")`"):
        return found[0]
    return f"`--{OPTIONS[name].replace('_', '-')}{'' if value is None else f' {value}'}`"
