"""A measured machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from headtail.machine.shape import Method, Shape


@dataclass(frozen=True)
class Timing:
    """A measured step.

    Attributes:
        method: how the loss was computed.
        shape: the size of the step.
        seconds: forward, backward and update; the median of several.
        memory: bytes at the peak: table, optimiser state and workspace; None where the system does
            not report them.
    """

    method: Method
    shape: Shape
    seconds: float
    memory: int | None


@dataclass(frozen=True)
class Machine:
    """A measured machine.

    Attributes:
        name: of the processor.
        device: "cpu" or "cuda".
        date: of the measurement, as 2026-01-31.
        torch: its version.
        memory: bytes that were free; None where the system does not report them.
        bandwidth: bytes per second, read and written, of a large copy.
        rate: floating-point operations per second of a large matrix product.
        timings: the steps.
        answers: number of labels: examples per second that `LabelHead.topk` answers.
    """

    name: str
    device: str
    date: str
    torch: str
    memory: int | None
    bandwidth: float
    rate: float
    timings: tuple[Timing, ...]
    answers: dict[int, float]

    def to_json(self) -> str:
        """For programs."""
        return json.dumps(asdict(self), indent=2) + "\n"
