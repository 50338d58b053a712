"""What was typed for a command: wrong options get one sentence, with what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from headtail.cli.options import OTHER_NAMES, as_option, options_of
from headtail.cli.overview import COMMANDS
from headtail.errors import HeadtailError

ALSO_CALLED = OTHER_NAMES | {"learning_rate": "lr", "output": "out", "top": "k", "topk": "k"}
"""Names that other programs give to options."""
FEW = 2
"""Commands with an option that are named although the option was probably misspelt."""
NO_NUMBER = re.compile(
    r"Error parsing (--\S+): "
    r"(?:invalid literal for (int)\(\) with base 10|could not convert string to float): '(.*?)'"
)
NO_VALUE = re.compile(r"Missing value for argument '(--\S+?)'")
NO_CHOICE = re.compile(r"invalid choice '(.*)' for argument '(--\S+)'\. Expected one of \((.*?)\)")
MISSING = re.compile(r"^[│ ] {5}(?![ ]|headtail )(\S+)", re.MULTILINE)  # in a box, or without one
TOO_MANY = re.compile(r"Unrecognized options: (.*?) (?:-{3}|For full)")


def check_options(words: Sequence[str]) -> None:
    """Refuse an option that the command does not have, and name one that it has, or the commands
    that have it.

    Args:
        words: the command and its arguments.

    >>> check_options(["train", "DATA", "--learning-rate", "0.1"])
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `headtail train` has no option `--learning-rate`. ...
    """
    name, *arguments = words
    known = options_of(COMMANDS[name].load())
    for argument in arguments:
        option = argument.partition("=")[0]
        setting = option.removeprefix("--").replace("-", "_")
        is_known = {setting, setting.removeprefix("no_")} & known
        if option.startswith("--") and not is_known and not setting.startswith(("help", "tyro")):
            raise HeadtailError(
                f"`headtail {name}` has no option `{option}`.{_instead(setting, known)} "
                f"`headtail {name} --help` lists its options."
            )


def _instead(setting: str, known: frozenset[str]) -> str:
    """The option that was probably meant, and the commands that have what was written."""
    near = difflib.get_close_matches(setting, known, n=1, cutoff=0.75)
    if ALSO_CALLED.get(setting) in known:
        near = [ALSO_CALLED[setting]]
    meant = f" Did you mean `{as_option(near[0])}`?" if near else ""
    having = [name for name, about in COMMANDS.items() if setting in options_of(about.load())]
    if not having or (near and len(having) > FEW):
        return meant
    others = ", ".join(f"`headtail {name}`" for name in having)
    return f"{meant} `{as_option(setting)}` is an option of {others}."


def sentence_of(message: str, name: str) -> str:
    """A message of tyro in one sentence.

    Args:
        message: as tyro prints it, in a box.
        name: of the command.

    >>> sentence_of("Error parsing --k: invalid literal for int() with base 10: 'x'", "predict")
    '`--k` must be a whole number, but got `x`.'
    """
    lines = [line.strip(" │╭╮╰╯─") for line in message.splitlines()]
    flat = " ".join(lines)
    if found := NO_NUMBER.search(flat):
        option, whole, given = found.groups()
        return f"`{option}` must be {'a whole number' if whole else 'a number'}, but got `{given}`."
    if found := NO_VALUE.search(flat):
        return f"`{found[1]}` needs a value. `headtail {name} --help` shows which."
    if found := NO_CHOICE.search(flat):
        return f"`{found[2]}` must be one of {found[3]}, but got `{found[1]}`."
    example = f"Write for example `{COMMANDS[name].example}`."
    if f"Missing from headtail {name}:" in flat:
        missing = " and ".join(f"`{each}`" for each in MISSING.findall(message))
        return f"`headtail {name}` needs {missing or 'more arguments'}. {example}"
    if found := TOO_MANY.search(flat):
        return f"`{found[1].strip()}` is more than `headtail {name}` takes. {example}"
    why = flat.partition(" For full helptext")[0].strip()
    return f"`headtail {name}` does not take these arguments ({why}). {example}"
