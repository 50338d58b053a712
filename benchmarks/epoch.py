"""Time of a whole training step on sparse features (gather, encode, label head, backward, update),
against PyTorch's sparse step and a full softmax with dense gradients, by optimiser; and of an epoch
and of eight schemes with evaluation.

The data is generated with the counts of AmazonCat-13K and WikiLSHTC-325K (headtail's `synthetic:`
reader); hidden size 512, uniform negatives with importance weights, dropout 0.5. Parts:

`step`: the median step of headtail's `Trainer` (one CUDA graph on a GPU) and of peers: PyTorch with
`embedding_bag(sparse=True)` and a sparse sampled softmax, PyTorch with full softmax and dense
gradients, both also with `torch.compile`, and fbgemm's table-batched embeddings on the CPU. The
peers' batches are gathered in advance; headtail's are gathered within the timed step.
`epoch`: seconds for one epoch of `Trainer.fit`, after one that is not timed.
`schemes`: all eight schemes of the paper, ten epochs each, followed by the top 50 labels of every
test point.

Run: .venv/bin/python benchmarks/epoch.py --device cpu [--part step epoch schemes] [--points 200000]
     [--fbgemm PYTHON]
`--points` limits the training points but not the numbers of features and labels; the rows record
it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from peers.cells import Cell, Found, ask_in_quiet, how_to_ask, threads_each, with_ratios

import headtail
from headtail.data.catalogue import CATALOGUE
from machine import append

HERE = Path(__file__).parent
NUMBERS = (
    *(
        "ms",
        "least_ms",
        "cpu_ms",
        "steps",
        "times_headtail",
        "times_headtail_cpu",
        "seconds",
        "pairs_per_s",
        "points",
        "peak_mib",
    ),
    *("threads", "others", "reason"),
)
OPTIMISERS = {
    "headtail": ("adagrad", "rowwise-adagrad", "momentum", "sgd", "adam"),
    "PyTorch, sampled, sparse=True": ("adagrad", "sgd", "adam"),
    "fbgemm": ("adagrad", "sgd"),
    "PyTorch, full softmax": ("adagrad", "momentum"),
}


def cells_of(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield all cells, headtail's first in each setting."""
    known = [one for one in CATALOGUE if one.name in given.data]
    batch = given.batch or (1024 if given.device == "cuda" else 256)
    for part, one in itertools.product(given.part, known):
        points = min(given.points or one.num_train, one.num_train)
        test = (
            one.num_test
            if part == "schemes" and not given.points
            else max(1, min(one.num_test, points // 3))
        )
        tested = test if part == "schemes" else 1000
        shape = f"synthetic:{one.name.lower()},points={points},test={tested}"
        sizes = one.num_labels, batch, given.negatives, given.dim, shape
        if given.tiny:
            shape = "synthetic:points=2000,test=300,features=5000,labels=600,features-a-point=20"
            sizes = 600, 32, 16, 16, shape
        for peer, how in itertools.product(
            given.peers if part == "step" else ("headtail",), given.how
        ):
            skip = (peer == "fbgemm" and given.device == "cuda") or (
                how == "compiled" and peer in ("headtail", "fbgemm")
            )
            kinds = OPTIMISERS[peer] if part == "step" else ("adagrad", "rowwise-adagrad")
            kinds = [
                kind
                for kind in kinds
                if kind in given.optimisers
                and not (given.device == "cuda" and kind == "momentum" and peer == "headtail")
            ]
            if not skip and not (part != "step" and how != "eager"):
                way = "graphed" if peer == "headtail" and given.device == "cuda" else how
                dtypes = given.dtypes if peer == "headtail" else ("float32",)
                for kind, dtype in itertools.product(kinds, dtypes):
                    yield Cell(part, peer, kind, way, given.device, dtype, *sizes)


def command(cell: Cell, given: argparse.Namespace) -> list[str]:
    """The child process for a cell."""
    if cell.part == "step":
        return [given.fbgemm if cell.peer == "fbgemm" else sys.executable, "-m", "peers.steps"]
    return [sys.executable, "-m", "peers.epochs"]


def row(cell: Cell, found: Found) -> dict[str, object]:
    """The CSV row of a cell."""
    return {**asdict(cell), **{name: found.get(name, "") for name in NUMBERS}}


def line(one: dict[str, object]) -> str:
    """A row as text."""
    who = (
        f"{one['part']!s:8} {one['peer']!s:31} {one['optimiser']!s:15} {one['how']!s:9} "
        f"{one['dtype']!s:8} {one['labels']:>8,}"
    )
    if one["reason"]:
        return f"{who}   {one['reason']}"
    numbers = {
        "ms": " ms",
        "times_headtail": " × ours",
        "seconds": " s",
        "pairs_per_s": " pairs/s",
        "peak_mib": " MiB",
    }
    return who + "".join(
        f"   {one[name]}{unit}" for name, unit in numbers.items() if one[name] != ""
    )


def main() -> None:
    """Measure, record each row at once, print them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--part", nargs="+", default=["step", "epoch"], choices=("step", "epoch", "schemes")
    )
    parser.add_argument("--data", nargs="+", default=["WikiLSHTC-325K", "AmazonCat-13K"])
    parser.add_argument("--how", nargs="+", default=["eager", "compiled"])
    parser.add_argument("--peers", nargs="+", default=list(OPTIMISERS))
    parser.add_argument("--optimisers", nargs="+", default=list(OPTIMISERS["headtail"]))
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=["float32"],
        help="dtypes of headtail's tables on a GPU: float32, bfloat16",
    )
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0, help="256 on a CPU, 1024 on a GPU")
    parser.add_argument("--negatives", type=int, default=256)
    parser.add_argument("--dim", type=int, default=512)
    how_to_ask(parser, timeout=600)
    given = parser.parse_args()
    # a peer's interpreter imports headtail from there
    paths = [str(HERE), str(Path(headtail.__file__).parents[1])]
    env = threads_each(given.threads) | {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    rows = []
    ours = {}
    path = None
    for cell in cells_of(given):
        patience = given.patience if given.device == "cpu" else 0
        found = ask_in_quiet(command(cell, given), cell, given.timeout, env, patience)
        rows.append(row(cell, with_ratios(cell, found, ours) if cell.part == "step" else found))
        path = None if given.tiny else append("epoch", [rows[-1]])
        print(line(rows[-1]), flush=True)
    print("\n" + "\n".join(line(one) for one in rows) + f"\n{path}")


if __name__ == "__main__":
    main()
