"""Side streams: work on a GPU that runs concurrently with the main stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def side_stream(device: torch.device, name: str) -> Iterator[None]:
    """On a GPU, run the block on the side stream of this name, after all work launched so far."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device, name)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def wait_for(device: torch.device, name: str) -> None:
    """Let all work launched from now on wait for the side stream of this name."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device, name))


@cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
