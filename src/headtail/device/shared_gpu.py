"""One GPU for several processes: the CUDA multi-process service, started and stopped with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
TIMEOUT = 30.0
"""Seconds after which the control program is taken to hang."""


@contextmanager
def shared_gpu(say: Callable[[str], None]) -> Iterator[None]:
    """Let processes that are started in the block compute on the GPU at the same time.

    Without the service they take turns. A service that is already running is used and left alone.
    Otherwise one is started, with its files in a private temporary folder, and stopped at the end
    of the block. This process itself should not start to use the GPU in the block: it would become
    a client, and the service waits for its clients.

    Args:
        say: called with one sentence if there is no service.
    """
    program = shutil.which(CONTROL)
    if program is None:
        say(f"`{CONTROL}` is not installed, so runs take turns on the GPU instead of sharing it.")
        yield
        return
    if _answers(program, "get_server_list"):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="headtail-mps-"))  # readable by its owner only
    ours = {f"CUDA_MPS_{name.upper()}_DIRECTORY": str(folder / name) for name in ("pipe", "log")}
    for place in ours.values():
        Path(place).mkdir()
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        started = _start(program)
        if not started:
            _restore(before)
            say(
                f"`{CONTROL} -d` did not start, so runs take turns on the GPU instead of sharing "
                "it."
            )
        try:
            yield
        finally:
            if started:
                _answers(program, "quit")
    finally:
        _restore(before)
        shutil.rmtree(folder, ignore_errors=True)


def _start(program: str) -> bool:
    try:
        done = subprocess.run(
            [program, "-d"],
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C asks the runs to save, and they need the service for that.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _answers(program: str, command: str) -> bool:
    """Whether a running service took the command."""
    try:
        done = subprocess.run(
            [program],
            input=f"{command}\n",
            text=True,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Some versions report a missing service in words only.
    return done.returncode == 0 and "cannot find" not in (done.stdout + done.stderr).lower()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
