"""A process that has imported everything, and forks one child per command line.

It reads orders as JSON lines and answers each with one: `start` a command, `wait` for it, `signal`
it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.crash.shim import Plan, arm


def main() -> None:
    """Follow orders until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    orders = os.fdopen(os.dup(0), "r", buffering=1)
    for line in orders:
        order = json.loads(line)
        answer = {"warm": _warm, "start": _start, "wait": _wait, "signal": _signal}[order["do"]]
        answers.write(json.dumps(answer(order)) + "\n")


def _warm(order: dict[str, Any]) -> int:
    """Run commands here once, undisturbed, so that no child imports anything."""
    import torch

    from headtail.training import trainer

    torch.set_num_threads(1)
    trainer.RECENT = -1.0  # a checkpoint after every epoch, however short it is
    os.environ["HEADTAIL_CACHE"] = str(Path(order["folder"]) / "cache")
    os.chdir(order["folder"])
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return sum(_command(argv) for argv in order["commands"])


def _command(argv: list[str]) -> int:
    from headtail.__main__ import main as run

    sys.argv = ["headtail", *argv]
    try:
        return run()
    finally:
        from headtail.__main__ import _leave

        atexit.unregister(_leave)


def _start(order: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = _child(order)
        except BaseException:
            traceback.print_exc()  # as Python does where nothing is caught
        finally:
            os._exit(code)
    return child


def _child(order: dict[str, Any]) -> int:
    folder = Path(order["folder"])
    for number, ending in ((1, "stdout"), (2, "stderr")):
        path = folder / f"{order['name']}.{ending}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
    os.chdir(folder)
    os.environ["HEADTAIL_CACHE"] = str(folder / "cache")
    plan = Plan(**order["plan"])
    log = folder / f"{order['name']}.calls"
    library = arm(plan, [folder / "out", folder / "cache"], log, folder / "grave")
    code = _command(order["argv"])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if plan.after_end:
        library.crash_now()
    return code


def _wait(order: dict[str, Any]) -> int | str | None:
    """The exit code of a child, minus the signal that ended it; "stopped" once a signal stopped it,
    and None if it takes too long.
    """
    end = time.monotonic() + order["seconds"]
    while time.monotonic() < end:
        child, status = os.waitpid(order["child"], os.WNOHANG | os.WUNTRACED)
        if child and os.WIFSTOPPED(status):
            return "stopped"
        if child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _signal(order: dict[str, Any]) -> None:
    os.kill(order["child"], getattr(signal, order["signal"]))


if __name__ == "__main__":
    main()
