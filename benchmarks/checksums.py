"""What checksums cost: the share of a first read, and of saving a model, that computes them.

Each is measured by replacing the checksum with one that does nothing, in turn with the real one, in
the same process. Target: below 5% of both.

Run: .venv/bin/python benchmarks/checksums.py [--pairs 7] [--lines 400_000] [--mib 512]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import headtail as ht
from headtail.data import cache, digests
from headtail.files import checksums, tensors
from machine import append


class NoChecksum:
    """In place of a checksum: looks at nothing."""

    def update(self, _: object) -> None:
        """Nothing."""

    def hexdigest(self) -> str:
        """Always the same."""
        return "0" * 32


def without(action: Callable[[], float]) -> float:
    """The action with checksums that cost nothing; files get a digest by their name and size."""
    real = checksums.new_checksum
    checksum_of = digests.checksum_of
    for module in (checksums, cache, tensors):
        module.new_checksum = NoChecksum
    for module in (digests, cache):
        module.checksum_of = lambda path: f"{path.name} {path.stat().st_size}"
    try:
        return action()
    finally:
        for module in (checksums, cache, tensors):
            module.new_checksum = real
        for module in (digests, cache):
            module.checksum_of = checksum_of


def in_pair(action: Callable[[], float], first: bool) -> tuple[float, float]:
    """Seconds with checksums and without; with them first or second."""
    if first:
        real = action()
        return real, without(action)
    bare = without(action)
    return action(), bare


def write_points(path: Path, lines: int) -> None:
    """Text with about 20 features per point."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(f"{lines} 100000 10000\n")
        for _ in range(lines):
            columns = np.sort(rng.choice(100_000, 20, replace=False))
            label = int(rng.integers(10_000))
            file.write(f"{label} " + " ".join(f"{column}:1.5" for column in columns) + "\n")


def first_read(path: Path, folder: Path) -> float:
    """Seconds to read a file that is not in the cache."""
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    ht.load(path)
    return time.perf_counter() - begun


def saving(path: Path, weights: dict[str, torch.Tensor]) -> float:
    """Seconds to save weights."""
    begun = time.perf_counter()
    tensors.save_tensors(path, weights, {})
    return time.perf_counter() - begun


def main() -> None:
    """Measure in pairs, print the medians, and add a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--lines", type=int, default=400_000)
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HEADTAIL_CACHE"] = str(folder / "cache")
        data = folder / "data.txt"
        write_points(data, options.lines)
        os.utime(data, (1, 1))
        time.sleep(digests.SETTLED + 0.1)
        weights = {"weight": torch.randn(options.mib << 18)}
        actions = {
            "first read": lambda: first_read(data, folder / "cache"),
            "saving": lambda: saving(folder / "model.safetensors", weights),
        }
        sizes = {"first read": data.stat().st_size >> 20, "saving": options.mib}
        for what, action in actions.items():
            action()  # warm: compiled kernels, pages of the file
            pairs = [in_pair(action, number % 2 == 0) for number in range(options.pairs)]
            with_them, without_them = (
                statistics.median(times) for times in zip(*pairs, strict=True)
            )
            cost = statistics.median(real / bare - 1 for real, bare in pairs)
            print(f"{what}: {with_them:.3f} s, without checksums {without_them:.3f} s: {cost:+.1%}")
            row = {
                "what": what,
                "mib": sizes[what],
                "pairs": options.pairs,
                "seconds": round(with_them, 3),
                "seconds_without": round(without_them, 3),
                "cost": round(cost, 4),
            }
            append("checksums", [row])


if __name__ == "__main__":
    main()
