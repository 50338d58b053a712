"""Ctrl-C, a closed terminal or a scheduler's signal: finish the step, save, and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HANGUP = signal.Signals.__members__.get("SIGHUP")  # Windows has none
SIGNALS = tuple(s for s in (signal.SIGINT, signal.SIGTERM, HANGUP) if s is not None)


class Stopped(KeyboardInterrupt):
    """Training stopped on request, and everything is saved."""


@contextmanager
def interrupts(*, twice: bool = True) -> Iterator[threading.Event]:
    """An event that such a signal sets, so that a step is never left half done; a second signal
    stops at once.

    A closed terminal stays ignored if it was ignored before, as under `nohup`.

    Args:
        twice: whether a second signal stops at once.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def stop(*_: Any) -> None:
        if flag.is_set() and twice:
            raise KeyboardInterrupt
        flag.set()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    if HANGUP is not None and before[HANGUP] == signal.SIG_IGN:
        del before[HANGUP]
    for number in before:
        signal.signal(number, stop)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
