"""What all ranks have refused is not tried again when torchrun starts them once more.

torchrun starts ranks again whatever they have ended with. What one launcher leaves to the ranks
that it starts later is its own folder of logs, which no other launcher has.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def remember_refusal() -> None:
    """Let ranks that are started again on this machine know. Each rank calls it before it ends."""
    if (note := _note()) is not None:
        with suppress(OSError):  # then they find out by themselves
            note.touch()


def refused_before() -> bool:
    """Whether the ranks before these have refused what they were started with."""
    note = _note()
    return note is not None and note.exists()


def _note() -> Path | None:
    """A file in this launcher's folder; None where that is unknown."""
    if not (error_file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        return None
    # LAUNCH/attempt_N/RANK/error.json
    attempt = Path(error_file).parents[1]
    if attempt.name != f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT')}":
        return None
    return attempt.with_name("refused")
