"""The command line: words for people."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stderr
from typing import Annotated, get_args

import tyro

from headtail import __version__
from headtail.cli.advise import Advise
from headtail.cli.audit import Audit
from headtail.cli.bench import Bench
from headtail.cli.compare import Compare
from headtail.cli.doctor import Doctor
from headtail.cli.evaluate import Evaluate, Predict
from headtail.cli.explain import Explain
from headtail.cli.help import REGISTRY
from headtail.cli.report import Report
from headtail.cli.stats import Stats
from headtail.cli.train import Train
from headtail.cli.words import in_command_line_words
from headtail.errors import HeadtailError, nearest

Command = (
    Annotated[Compare, tyro.conf.subcommand("compare", prefix_name=False)]
    | Annotated[Train, tyro.conf.subcommand("train", prefix_name=False)]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate", prefix_name=False)]
    | Annotated[Predict, tyro.conf.subcommand("predict", prefix_name=False)]
    | Annotated[Stats, tyro.conf.subcommand("stats", prefix_name=False)]
    | Annotated[Report, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[Explain, tyro.conf.subcommand("explain", prefix_name=False)]
    | Annotated[Audit, tyro.conf.subcommand("audit", prefix_name=False)]
    | Annotated[Bench, tyro.conf.subcommand("bench", prefix_name=False)]
    | Annotated[Advise, tyro.conf.subcommand("advise", prefix_name=False)]
    | Annotated[Doctor, tyro.conf.subcommand("doctor", prefix_name=False)]
)


def main(argv: list[str] | None = None) -> int:
    """Run `headtail …`; bad input is told in one sentence, with exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--version"]:
        sys.stdout.write(f"headtail {__version__}\n")
        return 0
    debug = "--debug" in argv
    try:
        _check_command(argv)
        command = _parse([arg for arg in argv if arg != "--debug"])
        if isinstance(command, Compare | Train):
            return command.run(argv)  # they tell how to go on
        return command.run()
    except HeadtailError as error:
        if debug:
            raise
        sys.stderr.write(f"headtail: {in_command_line_words(error)}\n")
        return 2
    except BrokenPipeError:  # the reader of our output left: `headtail … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("headtail: stopped.\n")
        return 130


def _check_command(argv: list[str]) -> None:
    """A misspelt command is answered with the right one."""
    names = [get_args(one)[1].name for one in get_args(Command)]
    if argv and not argv[0].startswith("-") and argv[0] not in names:
        raise HeadtailError(
            f"`{argv[0]}` is no command.{nearest(argv[0], names)} There are: {', '.join(names)}."
        )


def _parse(argv: list[str]) -> Command:
    told = io.TextIOWrapper(io.BytesIO(), encoding=sys.stderr.encoding)
    try:
        with redirect_stderr(told):
            return tyro.cli(
                Command,  # pyright: ignore[reportArgumentType] - a union of dataclasses is a command with subcommands
                prog="headtail",
                description="What does negative sampling do to your frequent and your rare labels?",
                args=argv,
                registry=REGISTRY,
            )
    except SystemExit as leaving:
        # A bad value that a dataclass refuses: its own sentence is shorter than what tyro makes of
        # it.
        error: BaseException | None = leaving
        while error is not None and not isinstance(error, HeadtailError):
            error = error.__context__
        if error is not None:
            raise HeadtailError(
                re.sub(r"^`(\w+)`", lambda name: f"`--{name[1].replace('_', '-')}`", str(error))
            ) from error
        told.seek(0)
        sys.stderr.write(told.read())
        raise
