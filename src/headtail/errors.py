"""The one exception headtail raises, and the checks that raise it.

An error holds its parts, and the surface that shows it renders them: Python writes a setting as
`lr`, the command line writes it as `--lr`.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import math
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A setting or argument by its Python name, optionally with a value to write.

    >>> print(Setting("lr"), Setting("clip", 1), Setting("schedule", "steps"))
    `lr` `clip=1` `schedule='steps'`
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        return f"`{self.name}`" if self.value is None else f"`{self.name}={self.value!r}`"


@dataclass(frozen=True)
class PythonName:
    """A class or function of headtail by its name in Python.

    Schemes have other names for classes, and the command line has commands for functions.
    """

    name: str

    def __str__(self) -> str:
        return f"`{self.name}`"


LONGEST_NAME = 300
"""Characters of a name or path in a sentence; of longer ones, both ends are shown."""
_WORD = re.compile(r"`[^`]*`|[^\s`]+")
_KEPT = ("Zs", "Co")
"""Not printable for Python, but harmless: spaces, and characters that some fonts have."""
_JOINERS = "\u200c\u200d"
"""Zero-width, but part of how words are written in several scripts, and of emoji."""

Word = Setting | PythonName
Write = Callable[[Word], str]
"""How a surface, such as the command line, writes a setting or a name."""


class Sentence(str):
    """A sentence for people that remembers which of its words are settings and names.

    It is a string in the words of Python; `render` writes it in other words. It is one line: names
    that it quotes may come from anywhere, so characters that a terminal obeys are written as in
    Python's source, and the middle of long names is left out.

    >>> sentence = Sentence("Try a smaller ", Setting("lr"), ", or ", Setting("clip", 1), ".")
    >>> print(sentence)
    Try a smaller `lr`, or `clip=1`.
    >>> sentence.render(lambda word: f"--{word.name}")
    'Try a smaller --lr, or --clip.'
    """

    parts: tuple[str | Word, ...]

    def __new__(cls, *parts: str | Word) -> Sentence:
        """Join the parts; a part that is a sentence itself keeps its own parts."""
        flat: list[str | Word] = []
        for part in parts:
            if isinstance(part, Sentence):
                flat += part.parts
            else:
                flat.append(_on_one_line(part) if isinstance(part, str) else _bounded(part))
        sentence = super().__new__(cls, "".join(map(str, flat)))
        sentence.parts = tuple(flat)
        return sentence

    def render(self, write: Write) -> str:
        """The sentence with its settings and names as `write` writes them."""
        return "".join(part if isinstance(part, str) else write(part) for part in self.parts)


def _on_one_line(text: str) -> str:
    r"""Text without line ends, characters that a terminal obeys, and very long names.

    >>> print(_on_one_line("`\x1b[31mred\n` is not a label."))
    `\x1b[31mred\n` is not a label.
    """
    if len(text) > LONGEST_NAME:
        text = _WORD.sub(_shortened, text)
    return visible(text)


def visible(text: str) -> str:
    r"""Text as one line in which every character is visible.

    Control characters, line ends, lone surrogates, and characters that have no width or change the
    direction of text are written as in Python's source.

    >>> visible("caf\udce9 \x1b[31mred\u202e\n")
    'caf\\udce9 \\x1b[31mred\\u202e\\n'
    """
    if text.isprintable():
        return text
    return "".join(_visible(text, place) for place in range(len(text)))


def _visible(text: str, place: int) -> str:
    character = text[place]
    if character.isprintable() or unicodedata.category(character) in _KEPT:
        return character
    # Between two ASCII characters a joiner joins nothing: it only makes two names look equal.
    if (
        character in _JOINERS
        and not text[max(0, place - 1) : place + 2].replace(character, "").isascii()
    ):
        return character
    return character.encode("unicode_escape").decode()


def _bounded(word: Word) -> Word:
    """A setting whose value, such as the name of a column, is not too long."""
    if isinstance(word, Setting) and isinstance(word.value, str):
        return replace(word, value=_ends(word.value))
    return word


def _shortened(word: re.Match[str]) -> str:
    return _ends(word[0])


def _ends(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:50]}…{name[-50:]}"


class HeadtailError(ValueError):
    """Bad input, in one sentence: what is wrong, what was passed, what to write instead.

    Args:
        *parts: text, with each `Setting` and `PythonName` as a part of its own, so that every
            surface can write them in its own way.

    >>> error = HeadtailError(Setting("lr"), " must be at least 0, but got -1.")
    >>> str(error), error.argument
    ('`lr` must be at least 0, but got -1.', 'lr')
    """

    def __init__(self, *parts: str | Word) -> None:
        super().__init__(Sentence(*parts))

    @property
    def sentence(self) -> Sentence:
        """The sentence, which can be rendered in other words."""
        return self.args[0]

    @property
    def argument(self) -> str | None:
        """The name of the first setting that the sentence names."""
        names = (part.name for part in self.sentence.parts if isinstance(part, Setting))
        return next(names, None)


def check_number(
    name: str, value: Any, *, low: float | None = None, high: float | None = None
) -> float:
    """Return `value` as a float if it is a finite number inside [low, high]."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not math.isfinite(number := float(value))
    ):
        raise HeadtailError(Setting(name), f" must be a finite number, but got {value!r}.")
    if (low is not None and number < low) or (high is not None and number > high):
        if high is None:
            bounds = f"at least {low}"
        elif low is None:
            bounds = f"at most {high}"
        else:
            bounds = f"between {low} and {high}"
        raise HeadtailError(Setting(name), f" must be {bounds}, but got {value!r}.")
    return number


def check_rate(lr: Any) -> None:
    """Refuse what is not a learning rate: a number of at least 0, or a tensor with one."""
    from torch import Tensor  # not above: errors are imported where torch would take too long

    if isinstance(lr, Tensor):
        if lr.dim() or not lr.is_floating_point():
            got = f"{lr.dtype} of shape {list(lr.shape)}"
            raise HeadtailError(
                Setting("lr"),
                f" must be a number or a tensor without dimensions, but got {got}. Write for "
                "example `torch.tensor(0.1)`.",
            )
        if lr.device.type != "cpu":
            return  # to see it, the host would wait
        lr = float(lr)
    check_number("lr", lr, low=0)


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """Return `value` as an int if it is a whole number of at least one, and not above `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise HeadtailError(
            Setting(name), f" must be a whole number of at least 1, but got {value!r}."
        )
    number = int(value)
    if most is not None and number > most:
        raise HeadtailError(Setting(name), f" is at most {most:,}, but got {number:,}.")
    return number


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Refuse what is not of this kind, and show how to write one."""
    if isinstance(value, kind):
        return
    if isinstance(value, str):
        got = repr(value)
    elif isinstance(value, type):
        got = f"the class {value.__name__} itself"
    else:
        got = type(value).__name__
    raise HeadtailError(
        Setting(name),
        f" must be a {kind.__name__}, but got {got}. Write for example `{example}`.",
    )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of `choices`."""
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise HeadtailError(Setting(name), f" must be one of {listed}, but got {value!r}.")


def check_ids(name: str, ids: Any, num_labels: int | None) -> None:
    """Refuse label ids that are not integers or lie outside 0 … num_labels − 1.

    Values are checked on the CPU only: on a GPU the check would make the host wait, and indexing
    asserts there anyway.
    """
    import torch

    check_kind(name, ids, torch.Tensor, "torch.tensor([3, 1, 4])")
    if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        advice = f"Floats lose ids above 16,777,216: use `{name}.long()` on the original integers."
        if ids.dtype == torch.bool:
            advice = f"For the ids of a mask, write `{name}.nonzero().flatten()`."
        raise HeadtailError(
            Setting(name), f" must hold integer label ids, but got {ids.dtype}. {advice}"
        )
    if num_labels is not None:
        check_inside(name, ids, num_labels, "label ids")


def check_inside(name: str, ids: Any, size: int, what: str, *, low: int = 0) -> None:
    """Refuse integers outside low … size − 1, with which a compiled kernel would read or write
    memory that is not its own.

    Values are checked on the CPU only, as in `check_ids`.

    Args:
        name: of the argument.
        ids: integers of any shape.
        size: one more than the largest that is allowed.
        what: the integers are, in words.
        low: the smallest that is allowed.
    """
    import torch

    if torch.compiler.is_compiling() or ids.device.type != "cpu" or ids.numel() == 0:
        return
    least, most = (int(bound) for bound in ids.aminmax())
    if least < low or most >= size:
        bad = least if least < low else most
        allowed = f" from {low} to {size - 1}" if size > low else ", but there are none"
        raise HeadtailError(Setting(name), f" must hold {what}{allowed}, but got {bad}.")


def check_num_labels(name: str, size: int | None, other: str, num_labels: int | None) -> None:
    """Refuse two things over different numbers of labels; None fits any number."""
    if size is not None and num_labels is not None and size != num_labels:
        raise HeadtailError(
            Setting(name), f" has {size} labels, but {other} {num_labels}. Make them equal."
        )


def check_same_device(name: str, tensor: Any, other_name: str, other: Any) -> None:
    """Refuse two tensors on different devices."""
    if tensor.device != other.device:
        raise HeadtailError(
            Setting(name),
            f" is on {tensor.device} but ",
            Setting(other_name),
            f" is on {other.device}. Move one of them, for example "
            f"`{name}.to({str(other.device)!r})`.",
        )


def check_exists(path: Path, otherwise: str = "") -> Path:
    """Refuse a path that is not a readable file or folder; where it does not exist, suggest the
    nearest name, or else say `otherwise`.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        near = nearest(path.name, _names_beside(path))
        raise HeadtailError(f"`{path}` does not exist.{near or otherwise}") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        raise HeadtailError(f"{str(path)[:200]!r} is not a path: it has a NUL in it.") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        pipe = stat.S_ISFIFO(mode)
        kind = "a named pipe (FIFO)" if pipe else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise HeadtailError(
            f"`{path}` is {kind}, and reading it may never end. Write what it holds into a file, "
            "and name that."
        )
    if not os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK):
        raise cannot_read(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return path


def cannot_read(path: Path | str, error: OSError) -> HeadtailError:
    """The error about a file or folder that the system does not let us read."""
    advice = {
        errno.EACCES: " Make it readable, for example with `chmod u+r`, or ask its owner to.",
        errno.ENAMETOOLONG: " Check what was passed.",
        errno.ELOOP: " Its links point at each other: name the file itself.",
        errno.EISDIR: " It is a folder: name a file in it.",
    }
    shown = str(path)
    shown = shown if len(shown) <= 200 else f"{shown[:120]}…{shown[-60:]}"
    why = error.strerror or str(error)
    return HeadtailError(f"`{shown}` cannot be read: {why}.{advice.get(error.errno or 0, '')}")


def _names_beside(path: Path) -> list[str]:
    """The names in the folder of a path, where it can be listed."""
    try:
        return [sibling.name for sibling in path.parent.iterdir()]
    except OSError:
        return []


def nearest(name: str, names: Iterable[str]) -> str:
    """A question that names the nearest of `names`, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(f'`{n}`' for n in close)}?" if close else ""


def need(package: str, *, extra: str, to: str, module: str | None = None) -> ModuleType:
    """Import an optional package; where it is missing, name the extra that installs it.

    Args:
        package: the name that pip knows, for example "pyarrow".
        extra: which of headtail's extras has it.
        to: what it is needed for, for example "Reading Parquet files".
        module: the name to import, where it differs from the package's.

    >>> need("math", extra="report", to="Counting").pi > 3
    True
    >>> need("no_such_package", extra="data", to="Reading Parquet files")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: Reading Parquet files needs no_such_package, which is not...
    """
    name = module or package
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise
        raise HeadtailError(
            f"{to} needs {package}, which is not installed. Run `pip install 'headtail[{extra}]'`."
        ) from error
