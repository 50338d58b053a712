"""Targets that do what must never happen, to see that the engine sees it.

`python -m tests.fuzz.broken` prints the kind of verdict on each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

from headtail.errors import HeadtailError
from tests.fuzz.engine import Case, Limits, run_cases
from tests.fuzz.readers import run_command
from tests.fuzz.verdicts import Wrong


class Raw(HeadtailError):
    """An error that shows what it was given as it is, as HeadtailError does not."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def read(folder: Path, case: Case) -> bool:
    return True


def refuse(folder: Path, case: Case) -> bool:
    raise HeadtailError(f"`{folder}/a.csv` is damaged. Fetch it again.")


def refuse_in_a_command(folder: Path, case: Case) -> bool:
    return run_command(["stats", "missing.csv"], folder).accepted


def raise_another(folder: Path, case: Case) -> bool:
    return bool({}[case])


def abort(folder: Path, case: Case) -> bool:
    os.abort()


def compute(folder: Path, case: Case) -> bool:
    while True:
        pass


def wait(folder: Path, case: Case) -> bool:
    time.sleep(1000)
    return True


def allocate(folder: Path, case: Case) -> bool:
    return bool(bytearray(3 << 30))


def warn(folder: Path, case: Case) -> bool:
    warnings.warn("a library speaks", stacklevel=1)
    return True


def write_to_the_error_stream(folder: Path, case: Case) -> bool:
    os.write(2, b"libpng: bad\n")
    return True


def obey(folder: Path, case: Case) -> bool:
    raise Raw("`\x1b[31m` is not a label.")


def break_the_line(folder: Path, case: Case) -> bool:
    raise Raw("One.\nTwo.")


def say_too_much(folder: Path, case: Case) -> bool:
    raise HeadtailError("much " * 300)


def leave(folder: Path, case: Case) -> bool:
    (folder / ".cache").mkdir()
    (folder / ".cache" / ".half").touch()
    return True


def change(folder: Path, case: Case) -> bool:
    raise Wrong("silent change", "other data are loaded")


EXPECTED = {
    read: "ok",
    refuse: "refused",
    refuse_in_a_command: "refused",
    raise_another: "exception",
    abort: "crash",
    compute: "hang",
    wait: "hang",
    allocate: "memory",
    warn: "noise",
    write_to_the_error_stream: "noise",
    obey: "odd characters",
    break_the_line: "odd characters",
    say_too_much: "long",
    leave: "leftover",
    change: "silent change",
}


def main() -> None:
    """Try each, in an order that has a good case behind each bad one."""
    targets = {target.__name__: target for target in EXPECTED}
    cases = [Case(name, 0) for bad in targets for name in (bad, "read")]
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    found = {name: set() for name in targets}
    for case, verdict, _ in run_cases(targets, cases, folder, Limits(seconds=2, waiting=6), jobs=2):
        found[case.target].add(verdict.kind)
    shutil.rmtree(folder)
    json.dump({name: sorted(kinds) for name, kinds in found.items()}, sys.stdout)


if __name__ == "__main__":
    main()
