"""A measured machine, and the file in the cache folder that keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headtail.errors import HeadtailError, PythonName, Sentence
from headtail.files.atomic import write_text
from headtail.files.cache_folder import cache_folder
from headtail.machine.shape import METHODS, Method, Shape

MEASURE = Sentence(PythonName("headtail.machine.bench.measure"), " to measure again")


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
        """For the cache, and for programs."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """What `to_json` wrote; anything else is a ValueError, KeyError or TypeError."""
        fields: dict[str, Any] = json.loads(text)
        timings = tuple(
            Timing(**timing | {"shape": Shape(**timing["shape"])}) for timing in fields["timings"]
        )
        answers = {int(labels): float(speed) for labels, speed in fields["answers"].items()}
        machine = cls(**fields | {"timings": timings, "answers": answers})
        numbers = [machine.bandwidth, machine.rate, *(timing.seconds for timing in timings)]
        positive = all(math.isfinite(number) and number > 0 for number in numbers)
        if not positive or any(timing.method not in METHODS for timing in timings):
            raise ValueError("not a measurement")
        return machine


def bench_file(device: str) -> Path:
    """Where the last measurement of a device is kept."""
    return cache_folder() / f"bench-{device}.json"


def save(machine: Machine) -> Path:
    """Keep a measurement for later advice."""
    path = bench_file(machine.device)
    write_text(path, machine.to_json())
    return path


def saved(device: str) -> Machine | None:
    """The last measurement of a device, if there is one."""
    path = bench_file(device)
    try:
        return Machine.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HeadtailError(
            f"`{path}` cannot be read: {error.strerror}. Delete it, or run ", MEASURE, "."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadtailError(f"`{path}` is damaged. Delete it, or run ", MEASURE, ".") from error
