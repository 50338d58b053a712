"""Ctrl-C, a closed terminal or a scheduler's signal: finish the step, save, and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HANGUP: Any = getattr(signal, "SIGHUP", None)
SIGNALS = tuple(one for one in (signal.SIGINT, signal.SIGTERM, HANGUP) if one is not None)


class Stopped(KeyboardInterrupt):
    """Training stopped on request, and everything is saved."""


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that such a signal sets, so that a step is never left half done; the second one
    stops at once.

    A closed terminal that is to be ignored, as `nohup` asks for, stays ignored.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def stop(*_: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = {one: signal.getsignal(one) for one in SIGNALS}
    if before.get(HANGUP) == signal.SIG_IGN:
        del before[HANGUP]
    for one in before:
        signal.signal(one, stop)
    try:
        yield flag
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
