"""Measuring a machine: a training step of the label head with three ways to compute the loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch
from torch import nn

from headtail.core.labels import Labels
from headtail.device import environment
from headtail.device.graphs import replayed
from headtail.device.memory import Peak, memory_left
from headtail.device.timing import seconds_of
from headtail.errors import HeadtailError, Setting
from headtail.head import LabelHead
from headtail.losses import SoftmaxLoss
from headtail.machine.head_step import head_step, table_of
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import METHODS, NUMBER, Method, Shape, memory_of, possible

SIZES = (10**4, 10**5, 10**6)
"""Numbers of labels."""
STEPS_PER_GRAPH = 16
QUICK_STEP = 0.01
"""On a GPU, steps are timed as CUDA graphs, as in training: several in one graph if a step takes
less than these seconds.
"""
SMALL = Shape(2**12, 16, 16, 16)
"""A step that is just large enough for compiled kernels."""

Report = Callable[[str], object]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        steady: seconds of measuring that give a steady median.
        longest_step: a step that is expected to take more seconds is not measured.
        copied: numbers that are copied to measure the bandwidth; None for the device's default.
        side: rows of the matrices that are multiplied; None for the device's default.
        memory: bytes that may be used; None for what is free.
    """

    steady: float = 0.6
    longest_step: float = 8.0
    copied: int | None = None
    side: int | None = None
    memory: int | None = None

    def memory_left(self, device: str) -> int | None:
        """Bytes that may be used; None where the system does not report them."""
        return memory_left(device) if self.memory is None else self.memory


USUAL = Effort()


def measure(
    device: str,
    dim: int,
    batch: int,
    negatives: int,
    sizes: tuple[int, ...] = SIZES,
    report: Report = str,
    effort: Effort = USUAL,
) -> Machine:
    """Measure a machine: a copy, a matrix product, steps by each method at several numbers of
    labels, and answers.

    Steps that would take too long or too much memory are left out.

    Args:
        device: "cpu" or "cuda".
        dim: d.
        batch: b.
        negatives: m.
        sizes: numbers of labels, growing.
        report: called with a few words before each of the `measurements`.
        effort: how long to measure.
    """
    report("bandwidth")
    bandwidth = _bandwidth(device, effort)
    report("matrix product")
    rate = _rate(device, effort)
    timings: list[Timing] = []
    for method in METHODS:
        shapes = [Shape(labels, dim, batch, negatives) for labels in sizes]
        if method in possible():
            # Loads kernels, which belongs neither to the time nor to the memory of a step.
            head_step(method, SMALL, table_of(SMALL, device))()
        for shape in shapes:
            report(f"{method}, {shape.labels:,} labels")
            if method in possible() and _is_bearable(method, shape, device, timings, effort):
                timings.append(time_step(method, shape, device, effort))
    _check_measured(timings, Shape(sizes[0], dim, batch, negatives))
    answers: dict[int, float] = {}
    for labels in sizes:
        report(f"answers, {labels:,} labels")
        if _can_answer(labels, dim, batch, device, answers, effort):
            answers[labels] = _answers(labels, dim, batch, device, effort)
    return Machine(
        name=environment.machine(device),
        device=device,
        date=date.today().isoformat(),
        torch=torch.__version__,
        memory=effort.memory_left(device),
        bandwidth=bandwidth,
        rate=rate,
        timings=tuple(timings),
        answers=answers,
    )


def measurements(sizes: tuple[int, ...] = SIZES) -> int:
    """How often `measure` reports."""
    return 2 + (len(METHODS) + 1) * len(sizes)


def time_step(method: Method, shape: Shape, device: str, effort: Effort = USUAL) -> Timing:
    """The median time of several steps, and the memory at the peak."""
    peak = Peak(device)
    times = 1
    step = head_step(method, shape, table_of(shape, device))
    if device == "cuda":
        step()  # kernels are compiled for a shape on their first call
        times = STEPS_PER_GRAPH if seconds_of(step, device) < QUICK_STEP else 1
        step = replayed(step, times)
    return Timing(method, shape, median_seconds(step, device, effort) / times, peak.bytes())


def median_seconds(work: Callable[[], Any], device: str, effort: Effort = USUAL) -> float:
    """The median time of at least three calls; work that is slow is called once after a warm-up."""
    first = seconds_of(work, device)
    if first > effort.longest_step / 2:
        return seconds_of(work, device)
    if first < 0.2:
        seconds_of(work, device)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < effort.steady and len(times) < 200):
        times.append(seconds_of(work, device))
    return statistics.median(times)


def _check_measured(timings: list[Timing], smallest: Shape) -> None:
    measured = {timing.method for timing in timings}
    for method in possible():
        if method not in measured:
            raise HeadtailError(
                f"The {method} loss does not fit into the free memory, even with "
                f"{smallest.labels:,} labels. Choose a smaller ",
                Setting("dim"),
                f" than {smallest.dim} or ",
                Setting("batch"),
                f" than {smallest.batch}.",
            )


def _is_bearable(
    method: Method, shape: Shape, device: str, timings: list[Timing], effort: Effort
) -> bool:
    """Whether a step fits in nine tenths of the memory and, judged by the last size, is not too
    slow.
    """
    left = effort.memory_left(device)
    if left is not None and memory_of(method, shape) > 0.9 * left:
        return False
    earlier = [timing for timing in timings if timing.method == method]
    if method == "sampled" or not earlier:
        return True
    last = earlier[-1]
    return last.seconds * shape.labels / last.shape.labels <= effort.longest_step


def _can_answer(
    labels: int, dim: int, batch: int, device: str, earlier: dict[int, float], effort: Effort
) -> bool:
    """Whether the table fits in half the memory and, judged by the last size, a batch is not too
    slow.
    """
    left = effort.memory_left(device)
    if left is not None and NUMBER * labels * dim > 0.5 * left:
        return False
    if not earlier:
        return True
    last = max(earlier)
    return batch / earlier[last] * labels / last <= effort.longest_step


def _answers(labels: int, dim: int, batch: int, device: str, effort: Effort) -> float:
    """Examples per second."""
    head = LabelHead(Labels.zipf(labels), dim, SoftmaxLoss(), device="meta")
    # Drawing a whole table would take longer than answering.
    some = torch.randn(min(labels, SIZES[0]), dim, device=device)
    head.weight = nn.Parameter(some.repeat(math.ceil(labels / len(some)), 1)[:labels])
    hidden = torch.randn(batch, dim, device=device)
    k = min(10, labels)
    return batch / median_seconds(lambda: head.topk(hidden, k), device, effort)


def _bandwidth(device: str, effort: Effort) -> float:
    """Bytes per second of a large copy, read and written."""
    numbers = effort.copied or (2**26 if device == "cpu" else 2**28)
    source = torch.ones(numbers, device=device)
    copy = torch.empty_like(source)
    return 2 * NUMBER * numbers / median_seconds(lambda: copy.copy_(source), device, effort)


def _rate(device: str, effort: Effort) -> float:
    """Floating-point operations per second of a large matrix product."""
    side = effort.side or (2048 if device == "cpu" else 8192)
    left = torch.randn(side, side, device=device)
    right = torch.randn(side, side, device=device)
    return 2 * side**3 / median_seconds(lambda: left @ right, device, effort)
