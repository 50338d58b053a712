"""Time and memory to read text, against scikit-learn; and the time to read it from the cache.

Target: at least five times as fast as scikit-learn, and under a second from the cache. Both read
the same file without a header, alternately, in one process pinned to one core, with one thread.
headtail: `read_text` with an empty cache, which includes the digest, parsing and writing the cache.
scikit-learn: `load_svmlight_file(multilabel=True)`. Numba has compiled before. Both results are
compared. A busy machine affects wall time more than processor time, so rows have both. Peak memory
is that of a fresh process that imports the reader and reads the file, and of one that only imports.
The second start is `read_text` in a fresh process with the file in the cache, without the import of
torch and headtail.

Files: Delicious' training points, if available (HEADTAIL_DATA), and generated lines with the shape
of AmazonCat-13K: 5 labels and 71 features per point on average, values with six decimals.

Run: .venv/bin/python benchmarks/parse_text.py [megabytes of the generated file] [repeats]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import numba
import numpy as np
import sklearn
import torch
from sklearn.datasets import load_svmlight_file

from headtail.data.bag import Bag
from headtail.data.catalogue import CATALOGUE
from headtail.data.readers.text import TextFile, read_text
from machine import append

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[2] / "shared" / "data")
OURS = "from headtail.data import text, parse"
THEIRS = "from sklearn.datasets import load_svmlight_file"
LOAD = "load_svmlight_file(str(path), multilabel=True, zero_based=True)"
SECOND = "from headtail.data import text; text.read_text(path)"


def generate(path: Path, megabytes: float) -> None:
    """Lines with the shape of AmazonCat-13K."""
    shape = CATALOGUE[1]
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        while file.tell() < megabytes * 1e6:
            labels = np.unique(
                (
                    shape.num_labels * rng.random(1 + rng.poisson(shape.labels_per_point - 1)) ** 3
                ).astype(int)
            )
            columns = np.unique(
                (
                    shape.num_features * rng.random(1 + rng.poisson(shape.features_per_point)) ** 2
                ).astype(int)
            )
            values = rng.random(len(columns))
            pairs = " ".join(
                f"{column}:{value:.6f}" for column, value in zip(columns, values, strict=True)
            )
            file.write(f"{','.join(map(str, labels))} {pairs}\n")


class Timer:
    """Wall and processor seconds of a block."""

    def __enter__(self) -> Timer:
        self.wall = time.perf_counter()
        self.cpu = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self.wall
        self.cpu = time.process_time() - self.cpu


def compare(file: TextFile, read: tuple) -> None:
    """Raise if the two readers disagree."""
    matrix, labels = read
    bag = file.points.features
    assert isinstance(bag, Bag)
    rows = np.repeat(np.arange(len(bag)), np.diff(bag.offsets))
    order = np.lexsort((bag.columns, rows))  # scikit-learn sorts columns
    assert np.array_equal(matrix.indptr, bag.offsets)
    assert np.array_equal(matrix.indices, bag.columns.numpy()[order])
    assert np.array_equal(matrix.data.astype(np.float32), bag.values.numpy()[order])
    flat = [int(label) for each in labels for label in sorted(each)]
    rows = np.repeat(np.arange(len(bag)), np.diff(file.points.labels.offsets))
    assert (
        flat
        == file.points.labels.values.numpy()[np.lexsort((file.points.labels.values, rows))].tolist()
    )


def fresh(imports: str, read: str, path: Path, cache: Path) -> tuple[float, float]:
    """Peak memory in MiB of a fresh process, and the seconds that `read` took there."""
    code = f"""
import sys, time
from pathlib import Path
{imports}
path, start = Path(sys.argv[1]), time.perf_counter()
{read}
seconds = time.perf_counter() - start
# Not ru_maxrss, which a process inherits from the one that started it.
status = Path("/proc/self/status").read_text().splitlines()
peak = next(line for line in status if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024, seconds)
"""
    environment = os.environ | {"HEADTAIL_CACHE": str(cache)}
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    peak, seconds = run.stdout.split()
    return float(peak), float(seconds)


def measure(name: str, path: Path, cache: Path, repeats: int) -> dict[str, object]:
    """Measure one file; returns its row."""
    ours = [Timer() for _ in range(repeats)]
    theirs = [Timer() for _ in range(repeats)]
    for our, their in zip(ours, theirs, strict=True):
        shutil.rmtree(cache, ignore_errors=True)
        with our:
            file = read_text(path)
        with their:
            read = load_svmlight_file(str(path), multilabel=True, zero_based=True)  # pyright: ignore[reportArgumentType]
        if our is ours[0]:
            compare(file, read)
    second = statistics.median(
        fresh("import headtail", SECOND, path, cache)[1] for _ in range(repeats)
    )
    shutil.rmtree(cache)
    row: dict[str, object] = {
        "file": name,
        "megabytes": f"{path.stat().st_size / 1e6:.1f}",
        "points": len(read_text(path).points),
    }
    for clock in ("wall", "cpu"):
        our, their = (
            statistics.median(getattr(timer, clock) for timer in timers)
            for timers in (ours, theirs)
        )
        row |= {
            f"{clock}_s": f"{our:.4f}",
            f"sklearn_{clock}_s": f"{their:.4f}",
            f"{clock}_ratio": f"{their / our:.2f}",
        }
    shutil.rmtree(cache)
    memory = {"peak_mib": (OURS, "text.read_text(path)"), "import_mib": (OURS, "")}
    memory |= {"sklearn_peak_mib": (THEIRS, LOAD), "sklearn_import_mib": (THEIRS, "")}
    row |= {key: f"{fresh(*code, path, cache)[0]:.0f}" for key, code in memory.items()}
    row |= {"second_start_s": f"{second:.4f}", "threads": 1, "repeats": repeats}
    print("   ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    """Measure both files; rows go to results/parse_text.csv."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 100
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        os.environ["HEADTAIL_CACHE"] = str(cache)
        files = {"AmazonCat-like": Path(folder) / "generated.txt"}
        generate(files["AmazonCat-like"], megabytes)
        if (delicious := DATA / "delicious" / "train.txt").exists():
            files["Delicious"] = Path(folder) / "delicious.txt"
            files["Delicious"].write_text(delicious.read_text().partition("\n")[2])
        small = Path(folder) / "small.txt"
        small.write_text("1 0:1\n")
        read_text(small)  # compiles
        rows = [measure(name, path, cache, repeats) for name, path in files.items()]
    versions = {"numba": numba.__version__, "sklearn": sklearn.__version__}
    print(append("parse_text", [versions | row for row in rows]))


if __name__ == "__main__":
    main()
