"""Whether all ranks see one folder."""

from __future__ import annotations

import socket
from pathlib import Path

from headtail.collectives.ranks import Ranks
from headtail.distributed.together import everywhere, first_problem
from headtail.errors import HeadtailError
from headtail.files.atomic import check_writable, delete, write_text
from headtail.files.leftovers import temporary_name


def check_shared(ranks: Ranks, folder: Path) -> None:
    """Make a folder, and refuse one that some rank cannot write to, or that is another one there,
    before any work is done for it. Every rank must call it.
    """
    everywhere(ranks, lambda: _check_writable(ranks, folder))
    first = ranks.rank == 0
    marker = temporary_name(folder.absolute() / "ranks")
    try:
        everywhere(ranks, lambda: write_text(marker, "") if first else None)
        name = first_problem(ranks, marker.name if first else None)  # all get that of the first
        everywhere(ranks, lambda: _look_for(ranks, folder / str(name)))
    finally:
        if first:
            delete(marker)


def _check_writable(ranks: Ranks, folder: Path) -> None:
    check_writable(folder, f"{_who(ranks)} needs it: choose a folder that all ranks can write to.")


def _look_for(ranks: Ranks, marker: Path) -> None:
    if not marker.exists():
        raise HeadtailError(
            f"{_who(ranks)} does not see the files of rank 0 in `{marker.parent}`. Choose a folder "
            "on a file system that all machines share."
        )


def _who(ranks: Ranks) -> str:
    return f"Rank {ranks.rank} on {socket.gethostname()}"
