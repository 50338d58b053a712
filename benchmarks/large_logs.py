"""Time and memory to read a log of 100 million events from a folder of Parquet files.

5 million users (numbers), 1 million items (strings, popularity by Zipf's law), a time per event, in
files of a million rows. Target: peak anonymous memory below 6 GiB, all processes together.

Run: .venv/bin/python benchmarks/large_logs.py [--rows 100_000_000] [--users …] [--items …]
     [--folder FOLDER] [--format sequences|interactions]
The log stays in the folder, so that a second run need not write it again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from machine import append

ROWS_PER_FILE = 1_000_000
READ = """
import sys, time
import headtail as ht
from headtail.data.reading import Reading
begun = time.perf_counter()
data = ht.load(sys.argv[1], Reading(format=sys.argv[2]), progress=lambda what, share: None)
seconds = time.perf_counter() - begun
print(len(data.train), len(data.test), data.train.num_labels, seconds)
"""


def write_log(folder: Path, rows: int, users: int, items: int) -> None:
    """Write the log, a file at a time; files that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    names = pa.array([f"item-{item:07d}" for item in range(items)])
    weights = 1 / np.arange(1, items + 1)
    ends = np.cumsum(weights) / weights.sum()
    files = -(-rows // ROWS_PER_FILE)
    for number in range(files):
        path = folder / f"part-{number:05d}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng(number)
        size = min(ROWS_PER_FILE, rows - number * ROWS_PER_FILE)
        user = (users * rng.random(size) ** 2).astype(np.int64)
        item = np.searchsorted(ends, rng.random(size)).clip(max=items - 1)
        seconds = 1_700_000_000 + number * 3600 + np.sort(rng.integers(3600, size=size))
        table = pa.table({"user_id": user, "item_id": names.take(item), "timestamp": seconds})
        aside = path.with_suffix(".part")
        pq.write_table(table, aside)
        aside.rename(path)
        print(f"\rwritten: {number + 1} of {files} files", end="", flush=True)
    print()


def anonymous_memory(parent: int) -> int:
    """Anonymous memory of a process and of its children, in bytes."""
    children: dict[int, list[int]] = {}
    sizes = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            lines = (entry / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        children.setdefault(int(status["PPid"]), []).append(int(entry.name))
        sizes[int(entry.name)] = int(status.get("RssAnon", "0 kB").split()[0]) * 1024
    waiting = [parent]
    total = 0
    while waiting:
        process = waiting.pop()
        total += sizes.get(process, 0)
        waiting += children.get(process, [])
    return total


def main() -> None:
    """Write the log, read it in a process of its own, and add a row to results/large_logs.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--users", type=int, default=5_000_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--format", default="sequences")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "large-log")
    given = parser.parse_args()
    write_log(given.folder, given.rows, given.users, given.items)
    with tempfile.TemporaryDirectory(dir=given.folder.parent) as cache:
        reading = subprocess.Popen(
            [sys.executable, "-c", READ, str(given.folder), given.format],
            env=os.environ | {"HEADTAIL_CACHE": cache},
            stdout=subprocess.PIPE,
            text=True,
        )
        peak = 0
        begun = time.perf_counter()
        while reading.poll() is None:
            peak = max(peak, anonymous_memory(reading.pid))
            passed = time.perf_counter() - begun
            print(f"\rreading: {passed:.0f} s, peak {peak / 2**30:.2f} GiB", end="", flush=True)
            time.sleep(0.2)
        print()
        if reading.returncode:
            raise SystemExit(reading.returncode)
        assert reading.stdout is not None
        train, test, labels, seconds = reading.stdout.read().split()
    row = {
        "rows": given.rows,
        "users": given.users,
        "items": given.items,
        "format": given.format,
        "train_points": train,
        "test_points": test,
        "labels": labels,
        "seconds": f"{float(seconds):.1f}",
        "peak_anonymous_gib": f"{peak / 2**30:.3f}",
    }
    print(row)
    append("large_logs", [row])


if __name__ == "__main__":
    main()
