"""Cells: single measurements, each in its own process, so that memory is measured per cell and a
crash becomes a row.

Only the standard library is used here: a peer's interpreter may not have torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
WARM = 3
"""Steps before timing starts."""
SECONDS = 1.5
"""How long a cell is timed, if a step is fast."""
GROUP = 0.02
"""Seconds that a group of queued steps takes."""
LEAST = 3
MOST = 400
"""Steps (or repeats) for a median."""
QUIET = 0.15
"""Cores that other processes may use during a CPU measurement: waiting threads lose far more."""
SHARE_OF_MEMORY = 0.8
"""Share of the free memory that a cell may use: more is an error of that cell only."""


@dataclass(frozen=True)
class Cell:
    """One measurement: who, how, and at which sizes."""

    part: str
    peer: str
    optimiser: str
    how: str
    device: str
    dtype: str
    labels: int
    batch: int
    negatives: int
    dim: int
    shape: str = ""

    @property
    def setting(self) -> tuple[object, ...]:
        """What must be equal to compare two rows."""
        return self.labels, self.batch, self.negatives, self.dim, self.shape, self.optimiser


Found = dict[str, object]
"""What a cell measured; with a `reason` where it could not."""


def serve(measure: Callable[[Cell], Found]) -> None:
    """In a child: measure each cell read from standard input, one JSON line each; print JSON."""
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        try:
            if cell.device == "cpu":
                bound_memory()
            watch = Watch()
            found = measure(cell)
            found["others"] = watch.others()
        except Exception as error:
            found = {"reason": f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]}
        gc.collect()
        print("ROW " + json.dumps([dataclasses.asdict(cell), found]), flush=True)


def how_to_ask(parser: argparse.ArgumentParser, timeout: float) -> None:
    """Add options for how cells are measured."""
    parser.add_argument(
        "--fbgemm",
        default=sys.executable,
        help="an interpreter with torch, headtail and fbgemm-gpu-cpu",
    )
    parser.add_argument(
        "--timeout", type=float, default=timeout, help="time limit of a process in seconds"
    )
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds to wait for an idle CPU"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="small sizes, to check that everything runs; nothing is recorded",
    )
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of every library, on a CPU"
    )


def ask_in_quiet(
    command: list[str],
    cell: Cell,
    timeout: float,
    env: dict[str, str] | None,
    patience: float,
    tries: int = 2,
) -> Found:
    """Measure one cell on an idle CPU, again if it was not idle; returns the quietest try."""
    found: list[Found] = []
    while len(found) < tries:
        wait_for_quiet(patience)
        found += [found for _, found in ask(command, [cell], timeout, env)]
        if "reason" in found[-1] or _others(found[-1]) <= QUIET or patience == 0:
            break
    return min(found, key=_others)


def _others(found: Found) -> float:
    return float(str(found.get("others", 0)))


def ask(
    command: list[str], cells: list[Cell], timeout: float, env: dict[str, str] | None = None
) -> Iterator[tuple[Cell, Found]]:
    """Measure cells in a child process; cells without an answer get the reason."""
    left = list(cells)
    if not Path(command[0]).exists():
        for cell in cells:
            yield cell, {"reason": f"not installed: no {command[0]}"}
        return
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | (env or {})
    )
    assert child.stdin
    assert child.stdout
    assert child.stderr
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(child.stderr or []), daemon=True)
    clock = threading.Timer(timeout, child.kill)
    reader.start()
    clock.start()
    child.stdin.write("".join(json.dumps(dataclasses.asdict(cell)) + "\n" for cell in cells))
    child.stdin.close()
    for line in child.stdout:
        if line.startswith("ROW "):
            given, found = json.loads(line.removeprefix("ROW "))
            cell = Cell(**given)
            left.remove(cell)
            yield cell, found
    code = child.wait()
    late = not clock.is_alive()
    clock.cancel()
    reader.join(1)
    last = next((text.strip() for text in reversed(errors) if text.strip()), "")
    said = (
        f"took more than {timeout:.0f} s"
        if late
        else f"the process ended with {code}: {last}"[:240]
    )
    for cell in left:
        yield cell, {"reason": said}


def times_of(
    step: Callable[[], object],
    wait: Callable[[], None] | None = None,
    seconds: float = SECONDS,
    each: int = 1,
) -> Found:
    """Milliseconds of a step: the median (`ms`), the least, and the median of this process's
    processor time.

    Args:
        step: what to time.
        wait: on a GPU, returns when queued work is done; steps are then timed in groups.
        seconds: how long to measure.
        each: number of steps in one call of `step`.
    """
    for _ in range(WARM):
        step()
    once = _timed(step, wait, 1)[0]
    group = 1 if wait is None or once > GROUP else round(GROUP / once)
    times = []
    begun = time.perf_counter()
    while len(times) < LEAST or (time.perf_counter() - begun < seconds and len(times) < MOST):
        times.append(_timed(step, wait, group))
    wall, cpu = zip(*times, strict=True)
    seconds_of = {
        "ms": statistics.median(wall),
        "least_ms": min(wall),
        "cpu_ms": statistics.median(cpu),
    }
    found: Found = {name: round(1000 * value / each, 5) for name, value in seconds_of.items()}
    return found | {"steps": len(times) * group * each}


def _timed(
    step: Callable[[], object], wait: Callable[[], None] | None, group: int
) -> tuple[float, float]:
    """Wall and processor seconds per step."""
    if wait is not None:
        wait()
    wall = time.perf_counter()
    cpu = time.process_time()
    for _ in range(group):
        step()
    if wait is not None:
        wait()
    return (time.perf_counter() - wall) / group, (time.process_time() - cpu) / group


def with_ratios(cell: Cell, found: Found, ours: dict[tuple[object, ...], Found]) -> Found:
    """Add a cell's time relative to headtail's for the same sizes and optimiser, wall and
    processor.

    headtail's own measurements are stored in `ours`, the latest one for each setting.
    """
    if "ms" not in found:
        return found
    if cell.peer == "headtail":
        ours[cell.setting] = found
    if cell.setting not in ours:
        return found
    mine = ours[cell.setting]
    ratio = {of: f"{float(str(found[of])) / float(str(mine[of])):.3g}" for of in ("ms", "cpu_ms")}
    return found | {"times_headtail": ratio["ms"], "times_headtail_cpu": ratio["cpu_ms"]}


def threads_each(threads: int) -> dict[str, str]:
    """Environment variables that set the number of threads of every library."""
    names = ("OMP", "MKL", "OPENBLAS", "NUMBA")
    more = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys([f"{name}_NUM_THREADS" for name in names] + list(more), str(threads))


class Watch:
    """Counts the cores that other processes use from now on; may be slightly below zero by
    rounding.
    """

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.total = _busy_seconds()
        self.own = _own_seconds()

    def others(self) -> float:
        """Cores, on average."""
        seconds = time.perf_counter() - self.begun
        return round(
            (_busy_seconds() - self.total - (_own_seconds() - self.own)) / max(seconds, 1e-3), 2
        )


def _busy_seconds() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def wait_for_quiet(patience: float) -> None:
    """Wait for an idle CPU, at most `patience` seconds."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < patience:
        watch = Watch()
        time.sleep(1)
        if watch.others() <= QUIET:
            return


def bound_memory() -> None:
    """Make allocations beyond the free memory fail in this process."""
    free = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (int(SHARE_OF_MEMORY * free * 1024), -1))


def reset_peak() -> None:
    """Reset the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mib(what: str = "VmHWM") -> float:
    """Peak memory of this process since `reset_peak`; with `VmRSS`, the current one."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)
    )
    return int(line.split()[1]) / 1024
