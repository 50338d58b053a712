"""What a training step of the label head costs here: measured time, counted memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headtail.machine.bench import Effort, time_step
from headtail.machine.shape import Method, Shape, memory_of

MEASURED_LABELS = {"cpu": 20_000, "cuda": 500_000}
"""A loss over more labels is measured over so many, and its time scaled with their number."""
MEASURED_NUMBERS = 2**29
"""A sampled step, whose time hardly depends on the number of labels, is measured on a table of at
most so many numbers.
"""
EFFORT = Effort(steady=0.3, longest_step=2.0)


@dataclass(frozen=True)
class StepCost:
    """A training step of the label head.

    Attributes:
        method: how the loss is computed.
        shape: the size of the step.
        seconds: measured here; None where it could not be.
        measured_labels: the number of labels it was measured over; the time is scaled from there.
        memory: bytes at the peak, counted.
        fits: whether the memory suffices.
    """

    method: Method
    shape: Shape
    seconds: float | None
    measured_labels: int
    memory: int
    fits: bool


def step_cost(
    method: Method, shape: Shape, device: str, memory: int, *, here: bool = True
) -> StepCost:
    """Measure a step, or a smaller one in proportion.

    A loss over all labels takes time in proportion to their number; a sampled one hardly depends on
    it.

    Args:
        method: how the loss is computed.
        shape: the size of the step.
        device: "cpu" or "cuda".
        memory: bytes that there are.
        here: whether the device is in this machine; else nothing is measured.
    """
    needed = memory_of(method, shape)
    fits = needed <= memory
    most = MEASURED_NUMBERS // shape.dim if method == "sampled" else MEASURED_LABELS[device]
    labels = min(shape.labels, most)
    if not here or not fits:
        return StepCost(method, shape, None, labels, needed, fits)
    seconds = time_step(method, replace(shape, labels=labels), device, EFFORT).seconds
    if method != "sampled":
        seconds *= shape.labels / labels
    return StepCost(method, shape, seconds, labels, needed, fits)
