"""The command line: one file per command, with options, tables and progress bars for people.

Whatever a command does can be done from Python with other rooms: no domain logic belongs here. What
a user sees when something goes wrong is in `main`: one sentence, in which settings are written as
options of the command, and exit code 2; with `--debug`, the traceback. Only the command in use is
imported.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import redirect_stderr
from typing import Any

from headtail import __version__
from headtail.cli.overview import COMMANDS, overview
from headtail.cli.refused import refused_before, remember_refusal
from headtail.errors import HeadtailError, nearest
from headtail.files.names import shown


def main(argv: list[str] | None = None) -> int:
    """Run `headtail …`; bad input gives one sentence and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    _escape_what_streams_lack()
    if argv == ["--version"]:
        sys.stdout.write(f"headtail {__version__}\n")
        return 0
    debug = "--debug" in argv
    words = [arg for arg in argv if arg != "--debug"]
    if words in ([], ["--help"], ["-h"]):
        sys.stdout.write(overview())
        return 0
    warnings.formatwarning = _warning
    if _is_of_rank(words) and refused_before():
        return 2
    try:
        _check_words(words)
        command = _parse(words)
        if words[0] in ("compare", "train"):
            return command.run(argv)  # they print how to go on
        return command.run()
    except MemoryError:
        if debug:
            raise
        sys.stderr.write("headtail: the computer ran out of memory.\n")
        return 2
    except BrokenPipeError:  # the reader of our output left: `headtail … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        if not _is_of_rank(words) or os.environ["RANK"] == "0":
            sys.stderr.write("headtail: stopped.\n")
        return 130
    except (HeadtailError, OSError) as error:
        if debug:
            raise
        sentence = f"headtail: {shown(_sentence(error, words[0]))}\n"
        if _is_of_rank(words):
            _tell_once(error, sentence)
        else:
            sys.stderr.write(sentence)
        return 2


def _is_of_rank(words: list[str]) -> bool:
    """Whether the command may be one of several that fail together."""
    return words[0] == "train" and "RANK" in os.environ


def _tell_once(error: BaseException, sentence: str) -> None:
    from headtail.distributed.processes import tell_once

    def tell() -> None:
        sys.stderr.write(sentence)
        sys.stderr.flush()

    if tell_once(error, tell):
        remember_refusal()


def _warning(message: Warning | str, *_: Any) -> str:
    """A warning as people read it, without the line of code that gave it."""
    return f"{shown(message)}\n"


def _escape_what_streams_lack() -> None:
    """Escape é where the output is not UTF-8, as with `LC_ALL=C`, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _sentence(error: HeadtailError | OSError, name: str) -> str:
    """The error with the options of the command in use, if there is one."""
    if isinstance(error, OSError):
        where = f"`{os.fsdecode(error.filename)}`: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    if name not in COMMANDS:
        return str(error)
    from headtail.cli.options import with_options

    return with_options(error, COMMANDS[name].load())


def _check_words(words: list[str]) -> None:
    """A misspelt command is answered with the right one; empty words and NULs name nothing."""
    name = words[0]
    if empty := [i for i, word in enumerate(words) if _is_empty(word)]:
        before = words[empty[0]] or (words[empty[0] - 1] if empty[0] else "headtail")
        raise HeadtailError(f"The value after `{before}` is empty. Write one, or leave both out.")
    if broken := [word for word in words if "\0" in word]:
        raise HeadtailError(
            f"`{broken[0]}` holds a NUL character, which no name of a file can. Leave it out."
        )
    if name not in COMMANDS:
        raise HeadtailError(
            f"`{name}` is not a command.{nearest(name, COMMANDS)} There are: {', '.join(COMMANDS)}."
        )


def _parse(words: list[str]) -> Any:
    import tyro

    from headtail.cli.help import REGISTRY, description_of
    from headtail.cli.typed import check_options, sentence_of

    check_options(words)
    about = COMMANDS[words[0]]
    command = about.load()
    messages = io.TextIOWrapper(io.BytesIO(), sys.stderr.encoding, "backslashreplace")
    try:
        with redirect_stderr(messages):
            return tyro.cli(
                command,
                prog=f"headtail {words[0]}",
                description=description_of(command),
                args=words[1:],
                registry=REGISTRY,
            )
    except SystemExit as leaving:
        # Where a dataclass refuses a value, its own sentence is shorter than what tyro makes of it.
        error: BaseException | None = leaving
        while error is not None and not isinstance(error, HeadtailError):
            error = error.__context__
        if error is not None:
            raise HeadtailError(error.sentence) from error
        if leaving.code in (None, 0):  # after `--help`
            sys.stdout.write(f"\nExample: {about.example}\n")
            raise
        messages.seek(0)
        raise HeadtailError(sentence_of(messages.read(), words[0])) from None


def _is_empty(word: str) -> bool:
    """Whether a word is empty, or an option without its value: `--out=`."""
    return not word or (word.startswith("--") and word.endswith("="))
