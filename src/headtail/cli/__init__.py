"""The command line: one file per command, with options, tables and progress bars for people.

Whatever a command does can be done from Python with other rooms: no domain logic belongs here. What
a user sees when something goes wrong is in `main`: one sentence, in which settings are written as
options of the command, and exit code 2; with `--debug`, the traceback.
"""

from __future__ import annotations

import io
import os
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
from headtail.cli.options import with_options
from headtail.cli.report import Report
from headtail.cli.stats import Stats
from headtail.cli.train import Train
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

COMMANDS: dict[str, type] = {
    get_args(kind)[1].name: get_args(kind)[0] for kind in get_args(Command)
}


def main(argv: list[str] | None = None) -> int:
    """Run `headtail …`; bad input gives one sentence and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--version"]:
        sys.stdout.write(f"headtail {__version__}\n")
        return 0
    debug = "--debug" in argv
    try:
        _check_command(argv)
        command = _parse([arg for arg in argv if arg != "--debug"])
        if isinstance(command, Compare | Train):
            return command.run(argv)  # they print how to go on
        return command.run()
    except HeadtailError as error:
        if debug:
            raise
        sys.stderr.write(f"headtail: {_sentence(error, argv)}\n")
        return 2
    except BrokenPipeError:  # the reader of our output left: `headtail … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("headtail: stopped.\n")
        return 130


def _sentence(error: HeadtailError, argv: list[str]) -> str:
    """The error with the options of the command in use, if there is one."""
    command = COMMANDS.get(argv[0]) if argv else None
    return str(error) if command is None else with_options(error, command)


def _check_command(argv: list[str]) -> None:
    """A misspelt command is answered with the right one."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise HeadtailError(
            f"`{argv[0]}` is not a command.{nearest(argv[0], COMMANDS)} There are: "
            f"{', '.join(COMMANDS)}."
        )


def _parse(argv: list[str]) -> Command:
    messages = io.TextIOWrapper(io.BytesIO(), encoding=sys.stderr.encoding)
    try:
        with redirect_stderr(messages):
            return tyro.cli(
                Command,  # pyright: ignore[reportArgumentType] - dataclasses as subcommands
                prog="headtail",
                description="What does negative sampling do to your frequent and your rare labels?",
                args=argv,
                registry=REGISTRY,
            )
    except SystemExit as leaving:
        # Where a dataclass refuses a value, its own sentence is shorter than what tyro makes of it.
        error: BaseException | None = leaving
        while error is not None and not isinstance(error, HeadtailError):
            error = error.__context__
        if error is not None:
            raise HeadtailError(error.sentence) from error
        messages.seek(0)
        sys.stderr.write(messages.read())
        raise
