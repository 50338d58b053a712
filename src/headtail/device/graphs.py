"""Capturing work as CUDA graphs, which a GPU replays in one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

WARM_UP_STEPS = 3
"""Steps before the capture, in which libraries initialise themselves."""


class Replay(NamedTuple):
    """Recorded work.

    Attributes:
        run: does the work.
        nbytes: memory that it holds on the device.
    """

    run: Callable[[], object]
    nbytes: int = 0


@runtime_checkable
class Record(Protocol):
    """Makes a `Replay` of work with fixed shapes and addresses; does not do the work.

    `pool` is the memory that it shares with other records that never run at the same time.
    `generators` are sources of randomness that the work uses beside torch's own.
    """

    def __call__(
        self,
        work: Callable[[], object],
        device: torch.device,
        pool: Pool,
        generators: Sequence[torch.Generator] = (),
    ) -> Replay:
        """Record."""
        ...


class Pool:
    """Memory for the intermediate results of graphs that run one after the other."""

    def __init__(self) -> None:
        self._handle: tuple[int, int] | None = None

    @property
    def handle(self) -> tuple[int, int]:
        """As torch knows it."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle


def record(
    work: Callable[[], object],
    device: torch.device,
    pool: Pool,
    generators: Sequence[torch.Generator] = (),
) -> Replay:
    """Record work as a CUDA graph. Raises RuntimeError where that is impossible."""
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        random = torch.cuda.get_rng_state(device)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            # Threads that pin memory or run collectives may go on meanwhile.
            with capturing(graph, pool=pool.handle, capture_error_mode="thread_local"):
                work()
        except Exception as error:
            forget_capture(device, random)
            raise RuntimeError(str(error).partition("\n")[0]) from error
        return Replay(graph.replay, max(0, torch.cuda.memory_reserved(device) - before))


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream | None = None, **options: Any
) -> Iterator[None]:
    """`torch.cuda.graph` on the current device, whatever device it was used on first: work on
    another one would run once and not be captured. The current stream is the same afterwards, even
    if the capture failed: torch would leave its own in place.
    """
    if stream is None:
        stream = _capture_stream(torch.cuda.current_device())
    with (
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, stream=stream, **options),
    ):
        yield


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """The stream of a device on which graphs are captured."""
    return torch.cuda.Stream(device)


def rerun(
    work: Callable[[], object],
    device: torch.device,
    pool: Pool,
    generators: Sequence[torch.Generator] = (),
) -> Replay:
    """A record for any device: it does the work again."""
    return Replay(work)


@contextmanager
def kept_random(device: torch.device) -> Iterator[None]:
    """Leave the random state of a device as it was before the block."""
    if device.type != "cuda":
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)
        return
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(state, device)


def stream_of(device: torch.device) -> int:
    """The number of a device's current stream; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch._C._cuda_getCurrentRawStream(index)  # as `current_stream`, in a tenth of the time


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
    with capturing(graph):
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


class _Failed:
    """How many captures failed in this process."""

    captures = 0


def failed_captures() -> int:
    """A part of the key of every graph: those made before a capture failed have lost torch's
    generator.
    """
    return _Failed.captures


def forget_capture(device: torch.device, random: Tensor) -> None:
    """Reset torch's generator after a failed capture, which would otherwise stay registered there.
    Graphs that were made before draw from the old one: they must not run any more.

    Args:
        device: the GPU.
        random: the generator's state before the capture.
    """
    _Failed.captures += 1
    fresh = torch.Generator(device)
    fresh.set_state(random)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())
