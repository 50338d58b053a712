"""After which steps ranks ask each other whether to stop or to save."""

from __future__ import annotations

import time
from typing import final

from headtail.collectives.accord import Accord

NOTICED_AFTER = 0.5
"""Seconds after which a signal or a deadline is noticed, as long as steps take as long as before.
"""

MOST_STEPS = 100
"""Steps between two meetings at most: a message takes a small part of their time, and steps that
suddenly take longer are noticed after as many.
"""


@final
class Pace:
    """Decides together with all ranks what has happened on some of them, but not after every step:
    on a GPU a message between hosts may take longer than a step.

    Ranks tell each other how long their steps take, so that all of them know after how many they
    meet again. One process decides alone, after every step.

    Args:
        accord: who decides.
    """

    def __init__(self, accord: Accord) -> None:
        self.accord = accord
        self._began: float | None = None
        self._met = 0.0
        self._steps = 0
        self._since = 0
        self._next = 1

    def any(self, *flags: bool, now: bool) -> tuple[bool, ...]:
        """For each flag, whether some rank has raised it; none has where ranks do not meet after
        this step. Every rank must call it after every step.

        Args:
            *flags: of this rank; one that is raised stays so until ranks meet.
            now: meet after this step in any case, the same on all ranks.
        """
        if self.accord.ranks is None:
            return flags
        self._since += 1
        if not now and self._since < self._next:
            return (False,) * len(flags)
        *raised, longest = self.accord.highest(*map(int, flags), self._microseconds())
        self._next = min(max(1, round(NOTICED_AFTER * 1e6) // max(1, longest)), MOST_STEPS)
        self._since = 0
        return tuple(map(bool, raised))

    def _microseconds(self) -> int:
        """How long a step takes."""
        time_now = time.monotonic()
        if self._began is None:  # the first step compiles and captures
            self._began = self._met = time_now
            return round(NOTICED_AFTER * 1e6)
        self._steps += self._since
        lately = (time_now - self._met) / self._since
        # The host runs ahead of a GPU, which only the mean over many steps shows.
        all_along = (time_now - self._began) / self._steps
        self._met = time_now
        return round(max(lately, all_along) * 1e6)
