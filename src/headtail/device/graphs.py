"""Capturing work as CUDA graphs, which a GPU replays in one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP_STEPS = 3
"""Steps before the capture, in which libraries initialise themselves."""


def warm_up(step: Callable[[], object]) -> None:
    """Take a few steps on a side stream, as a capture requires."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)


def graph_of(step: Callable[[], object], times: int = 1) -> torch.cuda.CUDAGraph:
    """`times` steps in sequence as one CUDA graph."""
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            step()
    return graph


def replayed(step: Callable[[], object], times: int = 1) -> Callable[[], object]:
    """A function that takes `times` steps: as one CUDA graph, or eagerly if they cannot be
    captured.
    """
    random = torch.cuda.get_rng_state()
    try:
        return graph_of(step, times).replay
    except RuntimeError:
        forget_capture(torch.device("cuda"), random)
        return lambda: [step() for _ in range(times)]


def forget_capture(device: torch.device, random: Tensor) -> None:
    """Reset torch's generator after a failed capture, which would otherwise stay registered there.

    Args:
        device: the GPU.
        random: the generator's state before the capture.
    """
    fresh = torch.Generator(device)
    fresh.set_state(random)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())
