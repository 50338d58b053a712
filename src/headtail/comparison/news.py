"""Callbacks of runs in other processes: workers send their calls, the parent makes them."""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty
from typing import Any, final

from headtail.training.callbacks import Callback, Progress

OVER = "over"
"""The last news of a cell, after all calls of its callback."""
PATIENCE = 10.0
"""Seconds to wait for news that is slower than the result of its cell."""


@final
class Reporter(Callback):
    """Sends all calls to the parent process.

    Args:
        title: of the cell.
        news: a queue to the parent.
    """

    def __init__(self, title: str, news: Any) -> None:
        self.title = title
        self.news = news

    def on_step(self, progress: Progress, loss: float) -> None:
        """Send it."""
        self.news.put((self.title, "on_step", (progress, loss)))

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Send it."""
        self.news.put((self.title, "on_epoch", (progress, metrics)))

    def on_end(self, progress: Progress) -> None:
        """Send it."""
        self.news.put((self.title, "on_end", (progress,)))

    def over(self) -> None:
        """Send that no more comes."""
        self.news.put((self.title, OVER, ()))


@final
class Followers:
    """The callbacks of cells that train in other processes, called in this one.

    Args:
        callbacks: title of a cell: what follows it.
        news: the queue that workers write to.
    """

    def __init__(self, callbacks: Mapping[str, Callback], news: Any) -> None:
        self.callbacks = dict(callbacks)
        self.news = news
        self._begun: dict[str, Progress] = {}

    def pass_on(self) -> None:
        """Make all calls that have arrived."""
        while not self.news.empty():
            self._call(*self.news.get())

    def wait_for(self, title: str) -> None:
        """Make all calls up to the last one of a cell that is done."""
        try:
            while title in self.callbacks:
                self._call(*self.news.get(timeout=PATIENCE))
        except Empty:  # another worker died and took this one with it
            pass

    def end(self) -> None:
        """Make the calls that are left; a cell whose process is gone ends where it was last."""
        self.pass_on()
        for title, progress in self._begun.items():
            self.callbacks[title].on_end(progress)

    def _call(self, title: str, method: str, arguments: tuple[Any, ...]) -> None:
        if title not in self.callbacks:  # a worker died between its last news and its result
            return
        if method == OVER:
            del self.callbacks[title]
            self._begun.pop(title, None)
            return
        if method == "on_end":
            self._begun.pop(title, None)
        else:
            self._begun[title] = arguments[0]
        getattr(self.callbacks[title], method)(*arguments)
