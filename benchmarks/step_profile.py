"""What bounds a captured step on a GPU: its kernels one by one, the time between them, and the
memory traffic that no implementation can avoid.

Two steps: the label head alone (b 1024, m 256, d 512), and the trainer's whole step in
WikiLSHTC-325K's shape. `step_us` is the time of a step, replayed as CUDA graphs; `busy_us` that
in which at least one kernel runs; `idle_us` the rest: a kernel that waits for another one starts
about a microsecond after it, and so does a graph after the graph before it. `us` of a kernel is
the sum of its durations in a step, where streams run side by side. `least_us` is the traffic
that no implementation avoids: rows and their gradients, read and written, at the speed of a copy.

Run: .venv/bin/python benchmarks/step_profile.py [--labels 325056] [--steps 64]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from peers.cells import Cell
from peers.heads import BATCHES, headtail
from peers.steps import headtail as whole_step
from torch.profiler import ProfilerActivity, profile

from headtail.data.synthetic import generate
from headtail.device.graphs import graph_of
from machine import append

SHAPE = "synthetic:wikilshtc-325k,points=400000,test=1000"
Step = Callable[[], object]


class Kernel(NamedTuple):
    """One kernel that ran: its name, stream, start and end in microseconds."""

    name: str
    start: float
    end: float


def kernels_of(step: Step, steps: int) -> list[Kernel]:
    """All kernels of so many steps, in the order of their start."""
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    found = [Kernel(e.name, e.time_range.start, e.time_range.end) for e in events]
    return sorted(found, key=lambda kernel: kernel.start)


def busy(kernels: Iterable[Kernel]) -> float:
    """Microseconds in which at least one of them runs."""
    total = 0.0
    until = 0.0
    for kernel in kernels:
        total += max(0.0, kernel.end - max(until, kernel.start))
        until = max(until, kernel.end)
    return total


def step_us(step: Step, steps: int) -> float:
    """Time of a step without a profiler: the median of seven rounds."""
    taken = []
    for _ in range(7):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(steps):
            step()
        ended.record()
        torch.cuda.synchronize()
        taken.append(1000 * begun.elapsed_time(ended) / steps)
    return statistics.median(taken)


def copy_gb_s() -> float:
    """How fast memory is copied, in gigabytes read and written per second."""
    source = torch.empty(2**28, device="cuda")
    to = torch.empty_like(source)
    taken = step_us(lambda: to.copy_(source), 20)
    return 2 * source.nbytes / taken / 1000


def head_of(cell: Cell) -> tuple[Step, int]:
    """Steps of the head alone as one graph, and how many of them it holds."""
    made = headtail(cell)
    hidden = torch.randn(cell.batch, cell.dim, device="cuda", requires_grad=True)
    targets = torch.randint(cell.labels, (BATCHES, cell.batch), device="cuda").unbind()
    batches = itertools.cycle(targets)

    def step() -> None:
        hidden.grad = None
        made.step(hidden, next(batches))

    return graph_of(step, BATCHES).replay, BATCHES


def rows_of(part: str, step: Step, each: int, cell: Cell, steps: int) -> list[dict[str, object]]:
    """One row for the step, then one for each of its kernels."""
    each_us = step_us(step, steps) / each
    kernels = kernels_of(step, steps)
    number = steps * each
    durations: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        durations[kernel.name].append(kernel.end - kernel.start)
    busy_us = busy(kernels) / number
    sizes = {"part": part, "optimiser": cell.optimiser, "labels": cell.labels}
    whole = {
        **sizes,
        "kernel": "(the step)",
        "per_step": round(len(kernels) / number, 1),
        "us": round(each_us, 1),
        "busy_us": round(busy_us, 1),
        "idle_us": round(each_us - busy_us, 1),
        "least_us": "",
    }
    listed = [
        {
            **sizes,
            "kernel": name[:80],
            "per_step": round(len(times) / number, 1),
            "us": round(sum(times) / number, 2),
            "busy_us": "",
            "idle_us": "",
            "least_us": "",
        }
        for name, times in durations.items()
    ]
    return [whole, *sorted(listed, key=lambda row: -float(row["us"]))]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=int, default=325_056)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--optimisers", nargs="+", default=["sgd", "adagrad"])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measures kernels of a GPU, and there is none here.")
    speed = copy_gb_s()
    print(f"memory is copied at {speed:,.0f} GB/s")
    data = generate(SHAPE)
    for optimiser in given.optimisers:
        cell = Cell(
            part="",
            peer="headtail",
            optimiser=optimiser,
            how="graphed",
            device="cuda",
            dtype="float32",
            labels=given.labels,
            batch=1024,
            negatives=256,
            dim=512,
            shape=SHAPE,
        )
        found = rows_of("head", *head_of(cell), cell, given.steps)
        in_use = (cell.batch + cell.negatives) * cell.dim * 4
        passes = 4 if optimiser == "sgd" else 6  # rows and gradients, read and written; state too
        least = in_use * passes / speed / 1000
        found[0]["least_us"] = round(least, 1)
        found += rows_of("whole step", whole_step(cell, data), 1, cell, given.steps)
        for row in found:
            print(*(f"{value!s:>12}" for value in row.values()))
        append("step_profile", found)


if __name__ == "__main__":
    main()
