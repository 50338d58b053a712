"""Time and peak memory of `headtail compare` on Delicious and of a plain PyTorch script for the
same epochs.

    .venv/bin/python benchmarks/compare_cost.py DATA/delicious --epochs 5

Both run as commands, read the text file, train ten schemes (eight sampled, full softmax, logit
adjustment) and test them; headtail also writes models, event files, bootstrap intervals and the
report. Its kernels have been compiled before. Memory is the peak, over time, of the summed
proportional set size of a command's processes, so that shared pages count once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from headtail.files.cache_folder import cache_folder
from headtail.schemes import PAPER
from machine import append

SCHEMES = (*PAPER, "softmax", "logit-adjusted")
HERE = Path(__file__).parent


def measure(command: list[str], env: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds and peak MiB of a command with all its children."""
    begun = time.perf_counter()
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
    return time.perf_counter() - begun, peak


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


def main() -> None:
    """Run both, print the ratio, record the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--negatives", type=int, default=64)
    given = parser.parse_args()
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
        rows = len(Path(f"{folder}/out/results.csv").read_text().splitlines())
    plain = measure([sys.executable, str(HERE / "plain_pytorch.py"), str(given.folder), *same])
    settings = {
        "data": given.folder.name,
        "schemes": len(SCHEMES),
        "epochs": given.epochs,
        "batch": given.batch,
        "m": given.negatives,
    }
    found = [
        {**settings, "what": what, "seconds": round(seconds, 1), "peak_mib": round(peak)}
        for what, (seconds, peak) in {"headtail compare": ours, "plain PyTorch": plain}.items()
    ]
    path = append("compare_cost", found)
    print(f"{'':18} {'seconds':>8} {'MiB':>7}")
    for row in found:
        print(f"{row['what']:18} {row['seconds']:8.1f} {row['peak_mib']:7,}")
    print(
        f"ratio {plain[0] / ours[0]:.1f} in time, {plain[1] / ours[1]:.2f} in memory; {rows:,} "
        f"result rows; appended to {path}"
    )


if __name__ == "__main__":
    main()
