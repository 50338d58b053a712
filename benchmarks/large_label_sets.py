"""Time and memory to build samplers for 100 million labels, and the time of 1,000 draws.

Target: under 10 s and 2 GiB besides the counts, and a few milliseconds per 1,000 draws.

Run: .venv/bin/python benchmarks/large_label_sets.py [number of labels]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

import torch

import headtail as ht
from machine import append

SAMPLERS = {
    "Uniform": lambda labels: ht.Uniform(labels, 1000),
    "Uniform, without replacement": lambda labels: ht.Uniform(labels, 1000, replacement=False),
    "Frequency 1": lambda labels: ht.Frequency(labels, 1000),
    "Frequency 0.75": lambda labels: ht.Frequency(labels, 1000, power=0.75),
    "Frequency 0.75, without replacement": lambda labels: ht.Frequency(
        labels, 1000, power=0.75, replacement=False
    ),
}


def peak() -> float:
    """Peak memory of this process, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str, size: int) -> None:
    """Measure one sampler in a separate process, so that the peak is its own; prints a row."""
    counts = torch.randint(1, 1000, (size,))
    before = peak()
    start = time.perf_counter()
    labels = ht.Labels.from_counts(counts)
    sampler = SAMPLERS[name](labels)
    build = time.perf_counter() - start
    memory = peak() - before
    target = torch.randint(size, (256,))
    sampler.draw(target)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        draw = sampler.draw(target)
        times.append(time.perf_counter() - start)
    assert draw.ids.numel() == 1000
    print(f"{build},{memory},{statistics.median(times) * 1000}")


def main() -> None:
    """Measure all samplers; rows go to results/large_label_sets.csv."""
    size = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    rows = []
    for name in SAMPLERS:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, str(size)],
            capture_output=True,
            text=True,
            check=True,
        )
        build, memory, draw = map(float, done.stdout.strip().splitlines()[-1].split(","))
        print(
            f"{name:38s} build {build:6.2f} s   {memory:5.2f} GiB besides the counts   1,000 draws "
            f"{draw:7.3f} ms",
            flush=True,
        )
        rows.append(
            {
                "labels": size,
                "sampler": name,
                "build_s": f"{build:.3f}",
                "memory_gib": f"{memory:.3f}",
                "draw_1000_ms": f"{draw:.4f}",
            }
        )
    print(append("large_label_sets", rows))


if __name__ == "__main__":
    if "--one" in sys.argv:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        main()
