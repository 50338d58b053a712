"""The grammar of scheme names: a name with arguments, and how many negatives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from headtail.errors import HeadtailError, nearest

Arg = float | str


@dataclass(frozen=True)
class Call:
    """A name with arguments: `frequency(0.75, excluded)`."""

    name: str
    args: tuple[Arg | Call, ...] = ()


def split_count(text: str, whole: str) -> tuple[str, int | None]:
    """The text before @, and the number behind it."""
    name, at, count = text.partition("@")
    if at and not re.fullmatch(r"[1-9]\d*", count):
        raise HeadtailError(
            f"`@{count}` in `{whole}` must be a whole number of negatives, for example `@256`."
        )
    return name, int(count) if at else None


def read_call(text: str, whole: str) -> Call:
    """Read `name` or `name(argument, …)`, a part of the name `whole`."""
    match = re.fullmatch(r"([a-z-]+)(?:\((.*)\))?", text.strip())
    if not match:
        raise HeadtailError(
            f"`{text}` in `{whole}` is not of the form `name` or `name(arguments)`. Try "
            "`within-batch:tail(0.5)@256`."
        )
    return Call(match[1], tuple(_argument(part, whole) for part in _split(match[2] or "")))


def _split(text: str) -> Iterable[str]:
    """Split at commas outside parentheses."""
    depth = 0
    part = ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += char
    if part.strip() or text.endswith(","):
        yield part.strip()


def _argument(text: str, whole: str) -> Arg | Call:
    try:
        number = float(text)
    except ValueError:
        return read_call(text, whole) if "(" in text else text
    if not math.isfinite(number):
        raise HeadtailError(f"`{text}` in `{whole}` must be a finite number.")
    return number


def text_of(arg: Arg | Call) -> str:
    """An argument as people write it."""
    if isinstance(arg, Call):
        return f"{arg.name}({', '.join(map(text_of, arg.args))})" if arg.args else arg.name
    return arg if isinstance(arg, str) else f"{arg:g}"


def check_known(name: str, names: tuple[str, ...], what: str, text: str) -> None:
    """Refuse a name that is not one of `names`, and suggest the nearest."""
    if name not in names:
        where = "" if name == text else f" in `{text}`"
        raise HeadtailError(
            f"`{name}`{where} is not {'an' if what[0] in 'aeiou' else 'a'} {what}."
            f"{nearest(name, names)} There are: {', '.join(names)}."
        )
