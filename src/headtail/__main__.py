"""`headtail …` and `python -m headtail …`: the command line, if its packages are installed."""

from __future__ import annotations

import atexit
import os
import sys

from headtail.cli import main as run
from headtail.errors import HeadtailError, need


def main() -> int:
    """Run the command line, or say which extra brings it."""
    # Threads of a small step wait more than they work: they should sleep meanwhile, not spin.
    # OpenMP reads this when torch is imported, which only a command does.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so it runs last
    try:
        for package in () if sys.argv[1:] == ["--version"] else ("tyro", "rich"):
            need(package, extra="cli", to="The command line")
    except HeadtailError as error:
        sys.stderr.write(f"headtail: {error}\n")
        return 2
    codes.append(run())
    return codes[0]


def _leave(codes: list[int]) -> None:
    """End at once after an error, while pyarrow may still be reading ahead: one of its threads that
    needs Python while Python shuts down would abort the process.
    """
    if any(codes):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


if __name__ == "__main__":
    sys.exit(main())
