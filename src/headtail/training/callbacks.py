"""Callbacks: what follows a run while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import final

from headtail.errors import HeadtailError, Setting, check_kind


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        step: steps completed since the beginning of the run, in all its parts.
        epoch: epochs completed.
        steps_per_epoch: steps in an epoch.
        epochs: most epochs of the run, which may stop earlier.
        best_epoch: epochs completed when the best weights were reached; 0 if there are none yet.
        finished: whether training is over; at the end, False for a run that was stopped or failed.
    """

    step: int
    epoch: int
    steps_per_epoch: int
    epochs: int
    best_epoch: int
    finished: bool


class Callback:
    """Follows a run: a subclass overrides what it needs. An error that it raises ends the run.

    >>> class Losses(Callback):
    ...     def on_epoch(self, progress, metrics):
    ...         print(progress.epoch, sorted(metrics))
    >>> from headtail import Run, Trainer, load
    >>> data = load("synthetic:points=60,test=20,features=80,labels=12")
    >>> trained = Trainer(Run(dim=4, epochs=2, batch=16), data, callbacks=[Losses()]).fit()
    1 ['train/loss', 'validation/implicit-loss']
    2 ['train/loss', 'validation/implicit-loss']
    """

    def on_step(self, progress: Progress, loss: float) -> None:
        """After some steps, as often as `Engine.check_every` says: reading a loss of every step
        would make a GPU wait.

        Args:
            progress: how far the run has come.
            loss: the mean of the steps since the last call.
        """

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """At the end of an epoch.

        Args:
            progress: how far the run has come.
            metrics: "train/loss", the mean over the epoch, and what was measured on held-out
                points, for example "validation/recall@10".
        """

    def on_end(self, progress: Progress) -> None:
        """When `fit` returns or raises, also for a run that was finished before."""


@final
class PrintEpochs(Callback):
    """Prints a line at the end of every epoch.

    Args:
        title: what the lines begin with, for example the scheme.

    >>> PrintEpochs("softmax").on_epoch(Progress(40, 2, 20, 5, 2, False), {"train/loss": 1.5})
    softmax: epoch 2 of 5, train/loss 1.5
    """

    def __init__(self, title: str = "") -> None:
        self.title = title

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Print it."""
        begin = f"{self.title}: " if self.title else ""
        values = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        line = f"{begin}epoch {progress.epoch} of {progress.epochs}, {values}"
        print(line, flush=True)  # noqa: T201 - what it is for


@final
class Callbacks(Callback):
    """Several callbacks as one.

    Args:
        several: a callback, or any number of them.
    """

    def __init__(self, several: Callback | Iterable[Callback]) -> None:
        if isinstance(several, Callback):
            several = [several]
        if not isinstance(several, Iterable):
            raise HeadtailError(
                Setting("callbacks"),
                f" must be a list of callbacks, but got {type(several).__name__}. Write for "
                "example `callbacks=[TensorBoard(folder)]`.",
            )
        self.several = tuple(several)
        for each in self.several:
            check_kind("callbacks", each, Callback, "[TensorBoard(folder)]")

    def on_step(self, progress: Progress, loss: float) -> None:
        """Call each."""
        for each in self.several:
            each.on_step(progress, loss)

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Call each."""
        for each in self.several:
            each.on_epoch(progress, metrics)

    def on_end(self, progress: Progress) -> None:
        """Call each, also after one that fails."""
        with ExitStack() as stack:
            for each in reversed(self.several):
                stack.callback(each.on_end, progress)
