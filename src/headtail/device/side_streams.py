"""Work on a GPU that need not wait for its turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def beside(device: torch.device, name: str) -> Iterator[None]:
    """On a GPU, in a stream of its own, after all that was asked for so far."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device, name)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def wait_for(device: torch.device, name: str) -> None:
    """What comes from now on waits for what was asked for `beside`."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device, name))


@cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
