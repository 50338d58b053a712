"""What a training step of the label head costs on this machine: three ways to take the loss,
measured.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headtail.comparison.results import write_text
from headtail.core.labels import Labels
from headtail.core.weightings import Importance
from headtail.data.cache import cache_folder
from headtail.device import environment
from headtail.device.memory import Peak, memory_left
from headtail.device.timing import seconds_of
from headtail.errors import HeadtailError
from headtail.head import LabelHead
from headtail.losses import SampledSoftmaxLoss, SoftmaxLoss
from headtail.rows.optimizers import RowAdagrad
from headtail.samplers import Uniform
from headtail.device.graphs import replayed

Method = Literal["exact", "chunked", "sampled"]
METHODS: tuple[Method, ...] = ("exact", "chunked", "sampled")
SIZES = (10**4, 10**5, 10**6)
MORE_NEGATIVES = 16
"""The sampled loss is also measured with this many times the negatives, to tell what one costs."""
FEWER_DIMS = 8
"""Every method is also measured with this fraction of the dimensions, to tell operations from
bytes.
"""
LONGEST_STEP = 8.0
"""Seconds that a step may be expected to take; where it would take longer, it is not measured."""
ENOUGH = 0.6
"""Seconds of measuring that give a steady median."""
IN_A_GRAPH = 16
QUICK = 0.01
"""On a GPU steps are timed as training takes them, as CUDA graphs: so many in one where a step
takes less than so many seconds.
"""
NUMBER = 4
"""Bytes of a float32."""

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Shape:
    """One training step of a label head.

    Attributes:
        labels: L.
        dim: d.
        batch: b.
        negatives: m, shared by the batch; exact losses do not look at it.
    """

    labels: int
    dim: int
    batch: int
    negatives: int

    @property
    def chunk(self) -> int:
        """Examples a chunk of the chunked loss: its scores then take a quarter of what the table
        takes, or of what all scores take.

        Every chunk adds to the gradient of the whole table, so much smaller chunks would spend
        their time on that.
        """
        return max(1, min(self.batch, self.dim) // 4)


SMALL = Shape(2**12, 16, 16, 16)
"""A step that is just worth kernels."""


@dataclass(frozen=True)
class Timing:
    """A measured step.

    Attributes:
        method: how the loss was taken.
        shape: of what.
        seconds: forward, backward and update; the median of several.
        memory: bytes at the peak: table, optimiser state and workspace; None where the system does
            not tell.
    """

    method: Method
    shape: Shape
    seconds: float
    memory: int | None


@dataclass(frozen=True)
class Machine:
    """A machine, measured.

    Attributes:
        name: the processor, in words.
        device: "cpu" or "cuda".
        date: of the measurement, as 2026-01-31.
        torch: its version.
        memory: bytes that could be taken; None where the system does not tell.
        bandwidth: bytes a second, read and written, of a large copy.
        rate: floating-point operations a second of a large matrix product.
        timings: the steps.
        answers: for each number of labels, how many examples a second `LabelHead.topk` answers.
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
        found: dict[str, Any] = json.loads(text)
        timings = tuple(
            Timing(**one | {"shape": Shape(**one["shape"])}) for one in found["timings"]
        )
        answers = {int(labels): float(speed) for labels, speed in found["answers"].items()}
        machine = cls(**found | {"timings": timings, "answers": answers})
        numbers = [machine.bandwidth, machine.rate, *(one.seconds for one in timings)]
        if not all(math.isfinite(number) and number > 0 for number in numbers) or any(
            t.method not in METHODS for t in timings
        ):
            raise ValueError("no measurement")
        return machine


def bench_file(device: str) -> Path:
    """Where the last measurement of a device is kept."""
    return cache_folder() / f"bench-{device}.json"


def save(machine: Machine) -> Path:
    """Keep a measurement for `headtail advise`."""
    write_text(bench_file(machine.device), machine.to_json())
    return bench_file(machine.device)


def saved(device: str) -> Machine | None:
    """The last measurement of a device, if there is one."""
    path = bench_file(device)
    try:
        return Machine.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HeadtailError(
            f"`{path}` cannot be read: {error.strerror}. `headtail bench` makes it again."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadtailError(
            f"`{path}` is damaged. Delete it, or write `headtail bench` to measure again."
        ) from error


def memory_of(method: Method, shape: Shape) -> int:
    """Bytes that a step needs at its peak, in float32 with Adagrad: table, its state, gradient
    where dense, and workspace.
    """
    table = shape.labels * shape.dim
    scores = shape.batch * shape.labels
    hidden = shape.batch * shape.dim
    match method:
        case "exact":  # scores, their log-softmax and its gradient
            numbers = 3 * table + 3 * scores + 2 * hidden
        case "chunked":  # a chunk has a gradient of the table of its own
            numbers = 4 * table + 2 * shape.chunk * shape.labels + 3 * hidden
        # the rows in use, their gradients and sums, the scores of the negatives, and what the
        # sampler looks up
        case "sampled":
            rows = (shape.batch + shape.negatives) * shape.dim
            numbers = 2 * table + 4 * rows + 3 * shape.batch * shape.negatives + 4 * shape.labels
    return NUMBER * numbers


def possible() -> tuple[Method, ...]:
    """The methods that this torch has."""
    return METHODS if hasattr(F, "linear_cross_entropy") else ("exact", "sampled")


def measure(
    device: str,
    dim: int,
    batch: int,
    negatives: int,
    sizes: tuple[int, ...] = SIZES,
    tell: Tell = str,
) -> Machine:
    """Measure a machine: its copy and matrix product, a step by each method at several numbers of
    labels, and answers.

    A method that a larger size would take too long or too much memory for is left out there.

    Args:
        device: "cpu" or "cuda".
        dim: d.
        batch: b.
        negatives: m.
        sizes: numbers of labels, growing.
        tell: is called with a few words before each measurement; how many there will be is told by
            `measurements`.
    """
    tell("bandwidth")
    bandwidth = _bandwidth(device)
    tell("matrix product")
    rate = _rate(device)
    timings: list[Timing] = []
    for method in METHODS:
        if method in possible():
            # loads kernels, which is neither its time nor its memory
            _step(method, SMALL, _table(SMALL, device))()
        for labels in sizes:
            tell(f"{method}, {labels:,} labels")
            shape = Shape(labels, dim, batch, negatives)
            if method in possible() and _bearable(method, shape, device, timings):
                timings.append(time_step(method, shape, device))
        tell(f"{method}, fewer dimensions")
        shape = Shape(sizes[:2][-1], max(1, dim // FEWER_DIMS), batch, negatives)
        if method in possible() and _bearable(method, shape, device, timings):
            timings.append(time_step(method, shape, device))
    if missing := [
        method for method in possible() if not any(one.method == method for one in timings)
    ]:
        raise HeadtailError(
            f"The {missing[0]} loss does not fit into the memory that is free, even with "
            f"{sizes[0]:,} labels. "
            f"Write a smaller `--dim` than {dim} or `--batch` than {batch}."
        )
    tell(f"sampled, {MORE_NEGATIVES} times the negatives")
    timings.append(
        time_step("sampled", Shape(sizes[0], dim, batch, MORE_NEGATIVES * negatives), device)
    )
    answers = {}
    for labels in sizes:
        tell(f"answers, {labels:,} labels")
        answers |= _answers(labels, dim, batch, device, answers)
    return Machine(
        name=environment.machine(device),
        device=device,
        date=date.today().isoformat(),
        torch=torch.__version__,
        memory=memory_left(device),
        bandwidth=bandwidth,
        rate=rate,
        timings=tuple(timings),
        answers=answers,
    )


def measurements(sizes: tuple[int, ...] = SIZES) -> int:
    """How often `measure` tells what it does."""
    return 3 + len(METHODS) + (len(METHODS) + 1) * len(sizes)


def time_step(method: Method, shape: Shape, device: str) -> Timing:
    """Forward, backward and update of one step: the median time of several, and the memory at the
    peak.
    """
    peak = Peak(device)
    times = 1
    step = _step(method, shape, _table(shape, device))
    if device == "cuda":
        step()  # kernels are compiled for a shape when they first see it
        times = IN_A_GRAPH if seconds_of(step, device) < QUICK else 1
        step = replayed(step, times)
    return Timing(method, shape, _median(step, device) / times, peak.bytes())


def _table(shape: Shape, device: str) -> nn.Parameter:
    # No random start: values do not change the time, and drawing them would be most of it.
    return nn.Parameter(torch.full((shape.labels, shape.dim), 0.01, device=device))


def _step(method: Method, shape: Shape, table: nn.Parameter) -> Callable[[], None]:
    optimiser = RowAdagrad([table])
    if method == "sampled":
        optimiser.inside_backward()
    loss = _loss(method, shape, table)

    def step() -> None:
        hidden = torch.randn(shape.batch, shape.dim, device=table.device, requires_grad=True)
        target = torch.randint(shape.labels, (shape.batch,), device=table.device)
        optimiser.zero_grad()
        loss(hidden, target).backward()
        optimiser.step()

    return step


def _loss(method: Method, shape: Shape, table: nn.Parameter) -> Callable[[Tensor, Tensor], Tensor]:
    if method == "chunked":
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=shape.chunk, chunking_method=None)
        return lambda hidden, target: F.linear_cross_entropy(hidden, table, target, options=options)
    sampled = method == "sampled"
    labels = Labels.zipf(shape.labels)
    loss = (
        SampledSoftmaxLoss(Uniform(labels, shape.negatives), Importance())
        if sampled
        else SoftmaxLoss()
    )
    head = LabelHead(labels, shape.dim, loss, sparse=sampled, device="meta")
    head.weight = table
    head.loss.to(table.device)
    return partial(head, ignore_index=None)


def _bearable(method: Method, shape: Shape, device: str, timings: list[Timing]) -> bool:
    """Whether it fits in nine tenths of the memory, and will not take too long, as far as the last
    size tells.
    """
    left = memory_left(device)
    if left is not None and memory_of(method, shape) > 0.9 * left:
        return False
    if method == "sampled":
        return True
    before = [one for one in timings if one.method == method]
    return not before or before[-1].seconds * shape.labels / before[-1].shape.labels <= LONGEST_STEP


def _answers(
    labels: int, dim: int, batch: int, device: str, before: dict[int, float]
) -> dict[int, float]:
    """Examples a second; nothing where the table would not fit, or a batch would take too long as
    far as the last size tells.
    """
    left = memory_left(device)
    if left is not None and NUMBER * labels * dim > 0.5 * left:
        return {}
    if before and batch / before[max(before)] * labels / max(before) > LONGEST_STEP:
        return {}
    head = LabelHead(Labels.zipf(labels), dim, SoftmaxLoss(), device="meta")
    # drawing all of them would take longer than answering
    some = torch.randn(min(labels, SIZES[0]), dim, device=device)
    head.weight = nn.Parameter(some.repeat(math.ceil(labels / len(some)), 1)[:labels])
    hidden = torch.randn(batch, dim, device=device)
    return {labels: batch / _median(lambda: head.topk(hidden, min(10, labels)), device)}


def _bandwidth(device: str) -> float:
    source = torch.ones(2**26 if device == "cpu" else 2**28, device=device)
    copy = torch.empty_like(source)
    return 2 * NUMBER * source.numel() / _median(lambda: copy.copy_(source), device)


def _rate(device: str) -> float:
    side = 2048 if device == "cpu" else 8192
    left = torch.randn(side, side, device=device)
    right = torch.randn(side, side, device=device)
    return 2 * side**3 / _median(lambda: left @ right, device)


def _median(work: Callable[[], Any], device: str) -> float:
    """The median time of at least three runs, and of as many as fit in `ENOUGH` seconds; slow ones
    run once after the warm-up.
    """
    first = seconds_of(work, device)
    if first > LONGEST_STEP / 2:
        return seconds_of(work, device)
    if first < 0.2:
        seconds_of(work, device)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < ENOUGH and len(times) < 200):
        times.append(seconds_of(work, device))
    return statistics.median(times)
