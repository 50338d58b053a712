"""Wall time of whole commands with waiting OpenMP threads that sleep or spin.

`headtail` sets OMP_WAIT_POLICY=PASSIVE unless the user has set it. Both policies run alternately,
seven pairs, in new processes that include the start of Python; the order changes from pair to pair.
The ratio is the median over pairs. Spinning threads cost other programs their cores, so the load of
the machine, which decides the result, is recorded.

Run: .venv/bin/python benchmarks/wait_policy.py [--tiny]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from machine import append

DATA = "synthetic:points=2000,test=500,features=500,labels=200"
COMMANDS = {
    "compare": ["compare", DATA, "--epochs", "3"],
    "train": ["train", DATA, "--epochs", "10", "--scheme", "within-batch:tail"],
}
PAIRS = 7


def seconds(words: list[str], policy: str) -> float:
    """Wall time of a command."""
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "headtail", *words, "--out", out],
            env=os.environ | {"OMP_WAIT_POLICY": policy},
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - begun


def main() -> None:
    """Measure both commands; rows go to results/wait_policy.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="one pair each; records nothing")
    tiny = parser.parse_args().tiny
    for name, words in COMMANDS.items():
        seconds(words, "PASSIVE")  # compiles kernels
        pairs = []
        for number in range(1 if tiny else PAIRS):
            order = ("PASSIVE", "ACTIVE") if number % 2 == 0 else ("ACTIVE", "PASSIVE")
            pairs.append({policy: seconds(words, policy) for policy in order})
        ratio = statistics.median(pair["PASSIVE"] / pair["ACTIVE"] for pair in pairs)
        median = {p: statistics.median(pair[p] for pair in pairs) for p in ("PASSIVE", "ACTIVE")}
        row = {
            "command": name,
            "passive_s": round(median["PASSIVE"], 2),
            "active_s": round(median["ACTIVE"], 2),
            "passive_to_active": round(ratio, 3),
            "load": round(os.getloadavg()[1], 2),
        }
        print(row if tiny else append("wait_policy", [row]))


if __name__ == "__main__":
    main()
