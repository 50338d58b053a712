"""One GPU for several processes: the CUDA multi-process service, begun and ended with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 30.0
"""Seconds in which the service's control answers, or never will."""


@contextmanager
def shared_gpu(say: Callable[[str], None]) -> Iterator[None]:
    """Processes begun in here compute on the GPU at the same time, and not in turns.

    A service that somebody runs already is used and left alone. Otherwise one is begun, with its
    files in a private temporary folder, and ended when the block is left. This process itself
    should not begin to use the GPU in the block: it would become a client whom the service waits
    for.

    Args:
        say: hears in one line why there is no service.
    """
    program = shutil.which(CONTROL)
    if program is None:
        say(f"`{CONTROL}` is not here, so runs take turns on the GPU instead of sharing it.")
        yield
        return
    if _told(program, "get_server_list"):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="headtail-mps-"))  # for its owner alone
    ours = {f"CUDA_MPS_{name.upper()}_DIRECTORY": str(folder / name) for name in ("pipe", "log")}
    for place in ours.values():
        Path(place).mkdir()
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        begun = _begin(program)
        if not begun:
            _restore(before)
            say(
                f"`{CONTROL} -d` did not start, so runs take turns on the GPU instead of sharing "
                "it."
            )
        try:
            yield
        finally:
            if begun:
                _told(program, "quit")
    finally:
        _restore(before)
        shutil.rmtree(folder, ignore_errors=True)


def _begin(program: str) -> bool:
    # A session of its own: Ctrl-C asks the runs to save, for which they need the service.
    how = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
    }
    try:
        return subprocess.run([program, "-d"], timeout=PATIENCE, check=False, **how).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _told(program: str, command: str) -> bool:
    """Whether a service was there to hear it."""
    try:
        done = subprocess.run(
            [program],
            input=f"{command}\n",
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    # some versions only say so
    return done.returncode == 0 and "cannot find" not in (done.stdout + done.stderr).lower()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
