"""How long something takes, on a CPU or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from headtail.device.graphs import replayed

REPLAYS = 4
"""How often a CUDA graph is timed."""


class Timed:
    """Appends the seconds of a block; on a GPU, including all work that it launched."""

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
    """How long a call takes as a CUDA graph, several times; empty on a CPU.

    Launched eagerly, a small call spends most of its time on the launches.
    """
    if torch.device(device).type != "cuda":
        return []
    run = replayed(call)
    return [seconds_of(run, device) for _ in range(REPLAYS)]
