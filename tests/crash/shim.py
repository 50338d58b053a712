"""The preloaded library that disturbs file-system calls: compiled once, armed in a process."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
ACTIONS = ("pass", "kill", "torn", "fail", "lose-content", "lose-names", "clock", "stop")
"""In the order of `enum action` in `shim.c`."""


@dataclass(frozen=True)
class Plan:
    """What happens at the n-th call that changes a file.

    Attributes:
        action: one of `ACTIONS`.
        n: the call, from 1; for a failure, the first from there on that can fail so.
        error: name of the errno of a failing call.
        lasting: whether all later calls fail too.
        after_end: at the end of the command instead, whatever `n` is.
    """

    action: str = "pass"
    n: int = 0
    error: str = "EIO"
    lasting: bool = False
    after_end: bool = False

    @property
    def kind(self) -> str:
        """What is tried, without the place."""
        if self.action != "fail":
            return f"{self.action} at the end" if self.after_end else self.action
        return f"{self.error}, lasting" if self.lasting else self.error


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def compiled(folder: Path) -> Path:
    """The library, compiled into a folder."""
    library = folder / "shim.so"
    found = compiler()
    assert found is not None
    command = [found, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", library]
    subprocess.run([*command, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def arm(plan: Plan, folders: list[Path], log: Path, grave: Path) -> ctypes.CDLL:
    """Let the library that this process was started with follow a plan.

    Args:
        plan: what to do.
        folders: calls that change something in these are counted.
        log: a file for the name and path of each such call.
        grave: an empty folder beside them, for files that lose their name.
    """
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.crash_count.restype = ctypes.c_long
    library.crash_arm(
        ":".join(map(str, folders)).encode(),
        str(log).encode(),
        str(grave).encode(),
        ctypes.c_long(1 << 40 if plan.after_end else plan.n),
        ACTIONS.index(plan.action),
        getattr(errno, plan.error),
        int(plan.lasting),
    )
    return library
