"""Time and peak memory of `headtail compare` on Delicious and of a plain PyTorch script for the
same epochs.

    .venv/bin/python benchmarks/compare_cost.py DATA/delicious --epochs 5 --runs 3

Both run as commands, one after the other in each run, read the text file, train ten schemes (eight
sampled, full softmax, logit adjustment) and test them; headtail also writes models, event files,
bootstrap intervals and the report. Its kernels have been compiled before. Memory is the peak, over
time, of the summed proportional set size of a command's processes, so that shared pages count once.
`cpu_seconds` is the processor time of all its processes, which other work on the machine affects
less; `others` is how many cores that other work used.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from peers.cells import Watch

from headtail.files.cache_folder import cache_folder
from headtail.schemes import PAPER
from machine import append

SCHEMES = (*PAPER, "softmax", "logit-adjusted")
HERE = Path(__file__).parent
ADOPT_ORPHANS = 36
"""Linux's PR_SET_CHILD_SUBREAPER."""


def measure(command: list[str], env: dict[str, str] | None = None) -> dict[str, float]:
    """Time and peak MiB of a command with all its children."""
    begun = time.perf_counter()
    watch = Watch()
    before = _children_seconds()
    peak = 0.0
    process = subprocess.Popen(
        command, env=os.environ | (env or {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.returncode is None:
        peak = max(peak, memory(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)  # reading memory more often would slow down what is measured
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    seconds = time.perf_counter() - begun
    with suppress(ChildProcessError):  # what workers were forked from outlives the command a little
        while True:
            os.wait()
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(_children_seconds() - before, 1),
        "others": watch.others(),
        "peak_mib": round(peak),
    }


def _children_seconds() -> float:
    """Processor time of all processes that are over, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(pid: int) -> float:
    """MiB of a process and its children, shared pages in proportion."""
    try:
        kib = next(
            int(line.split()[1])
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, StopIteration):
        return 0.0  # it has just exited
    return kib / 1024 + sum(memory(int(child)) for child in children)


def compare_and_plain(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What both cost, one after the other."""
    same = [
        "--epochs",
        str(given.epochs),
        "--batch",
        str(given.batch),
        "--negatives",
        str(given.negatives),
        "--schemes",
        *SCHEMES,
    ]
    with tempfile.TemporaryDirectory() as folder:
        headtail = [
            sys.executable,
            "-m",
            "headtail",
            "compare",
            str(given.folder),
            "--out",
            f"{folder}/out",
            "--validation",
            "0",
        ]
        kernels = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder() / "numba")
        ours = measure(
            [*headtail, *same], {"HEADTAIL_CACHE": f"{folder}/cache", "NUMBA_CACHE_DIR": kernels}
        )
    plain = measure([sys.executable, str(HERE / "plain_pytorch.py"), str(given.folder), *same])
    return {"headtail compare": ours, "plain PyTorch": plain}


def main() -> None:
    """Run both several times, print the ratios, record the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--negatives", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1)
    settings = {
        "data": given.folder.name,
        "schemes": len(SCHEMES),
        "epochs": given.epochs,
        "batch": given.batch,
        "m": given.negatives,
    }
    for _ in range(given.runs):
        found = compare_and_plain(given)
        append("compare_cost", [{**settings, "what": what, **row} for what, row in found.items()])
        for what, row in found.items():
            print(what, row)
        ours, plain = found.values()
        ratios = {name: f"{plain[name] / ours[name]:.2f}" for name in ours if name != "others"}
        print("plain PyTorch / headtail:", ratios, flush=True)


if __name__ == "__main__":
    main()
