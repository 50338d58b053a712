"""`headtail …` and `python -m headtail …`: the command line, if its packages are installed."""

from __future__ import annotations

import sys

from headtail.cli import main as run
from headtail.errors import HeadtailError, need


def main() -> int:
    """Run the command line, or say which extra brings it."""
    try:
        for package in () if sys.argv[1:] == ["--version"] else ("tyro", "rich"):
            need(package, extra="cli", to="The command line")
    except HeadtailError as error:
        sys.stderr.write(f"headtail: {error}\n")
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
