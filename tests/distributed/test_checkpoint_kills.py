"""Ranks that are killed while they save leave the last checkpoint as it was."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.distributed.saving_kills import (
    FAILED,
    ON_ALL_RANKS,
    PHASES,
    Kill,
    codes,
    load_what_is_left,
    save_until_killed,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
KILLS = [
    Kill(phase, everyone, rank, beside)
    for phase in PHASES
    for everyone in (False, True)
    for rank in ((0, 1) if phase in ON_ALL_RANKS else (0,))
    for beside in (False, True)
]
SOME = [
    Kill("while writing", rank=1),
    Kill("before the rename", beside=True),
    Kill("while removing", everyone=True),
]


@pytest.mark.parametrize("kill", SOME, ids=str)
def test_a_kill_leaves_the_last_checkpoint(kill: Kill, tmp_path: Path):
    look(kill, 2, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kill", KILLS, ids=str)
def test_kills_at_every_phase_of_saving(kill: Kill, tmp_path: Path):
    look(kill, 3, tmp_path)


def look(kill: Kill, ranks: int, folder: Path) -> None:
    """Kill ranks, and let as many new ones go on."""
    struck = codes(save_until_killed, kill, ranks, folder)
    killed = [-signal.SIGKILL] * ranks
    if not kill.everyone:
        killed = [FAILED] * ranks
        killed[kill.rank] = -signal.SIGKILL
    assert struck == killed, said(folder)
    assert codes(load_what_is_left, kill, ranks, folder) == [0] * ranks, said(folder)


def said(folder: Path) -> str:
    """What the ranks wrote before they ended."""
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.txt")))
