"""How long something takes, on a CPU or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

REPLAYS = 4
"""Of what is timed as a CUDA graph."""


class Timed:
    """Appends the seconds of a block; on a GPU, of all that it launched."""

    def __init__(self, seconds: list[float], device: torch.device | str) -> None:
        self.seconds = seconds
        self.cuda = torch.device(device).type == "cuda"

    def __enter__(self) -> None:
        self.begun = self._now()

    def __exit__(self, *_: Any) -> None:
        self.seconds.append(self._now() - self.begun)

    def _now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def seconds_of(call: Callable[[], object], device: torch.device | str) -> float:
    """How long one call takes."""
    seconds: list[float] = []
    with Timed(seconds, device):
        call()
    return seconds[0]


def replayed_seconds(call: Callable[[], object], device: torch.device | str) -> list[float]:
    """On a GPU, how long a call takes as a CUDA graph: launching it operation by operation is
    mostly what takes the time.
    """
    if torch.device(device).type != "cuda":
        return []
    from headtail.training.captured import replayed

    run = replayed(call)
    return [seconds_of(run, device) for _ in range(REPLAYS)]
