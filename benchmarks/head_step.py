"""Time and memory of a training step of the label head, from ten thousand to ten million labels, by
headtail and by other libraries; and the number of labels from which sampling beats the exact
softmax.

A step takes hidden states `[b, d]` and targets `[b]`, and ends with the loss, the gradient of the
hidden states and an updated label table. Sampled heads: m uniform negatives shared by the batch,
importance weights. Exact heads: all labels, dense gradients. Variants: `eager`; `compiled`
(`torch.compile` of the loss); on a GPU also `graphed` (16 steps, each with its own targets, in one
CUDA graph; time per step), which is how headtail's `Trainer` runs. Torch's row-sparse optimisers,
liger-kernel 0.8.5 and cut-cross-entropy 25.1.1 synchronise with the host and cannot be captured.
Times are medians; targets are uniform over all labels, so caches do not help.

Memory is the peak above that of the loaded libraries. `needed_mib` is the table, its optimiser
state and headtail's vectors over labels; `above_mib` is the rest: gradients, scores, scratch. On
the CPU every row is a fresh process.

`others` is the number of cores that other processes used meanwhile: on a CPU a measurement waits
until it is almost zero, and is repeated if it was not. `times_headtail` is a row's time over
headtail's for the same sizes and optimiser (graphed if measured).

Run: .venv/bin/python benchmarks/head_step.py --device cpu [--part labels m batch huge]
     [--how eager compiled graphed]
Libraries with their own interpreters (see README.md): --tensorflow PYTHON --fbgemm PYTHON
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from peers.cells import Cell, Found, ask, ask_in_quiet, how_to_ask, threads_each, with_ratios

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
        "peak_mib",
        "needed_mib",
        "above_mib",
    ),
    *("threads", "others", "version", "reason"),
)
OPTIMISERS = {
    "headtail": ("adagrad", "sgd", "adam"),
    "PyTorch, sampled, sparse=True": ("adagrad", "sgd", "adam"),
    "PyTorch, sampled, dense gradients": ("adagrad", "sgd"),
    "PyTorch, full softmax": ("adagrad", "sgd"),
    "F.linear_cross_entropy": ("adagrad", "sgd"),
    "liger-kernel": ("sgd",),
    "cut-cross-entropy": ("sgd",),
    "fbgemm": ("adagrad", "sgd"),
    "TensorFlow": ("adagrad", "sgd"),
}
ONLY_ON = {
    "liger-kernel": "cuda",
    "cut-cross-entropy": "cuda",
    "fbgemm": "cpu",
    "TensorFlow": "cpu",
}
NOT_COMPILED = ("headtail", "liger-kernel", "cut-cross-entropy", "fbgemm", "TensorFlow")
NOT_GRAPHED = (
    "PyTorch, sampled, sparse=True",
    "liger-kernel",
    "cut-cross-entropy",
    "fbgemm",
    "TensorFlow",
)
HALF = (
    "headtail",
    "PyTorch, full softmax",
    "F.linear_cross_entropy",
    "liger-kernel",
    "cut-cross-entropy",
)
"""Heads also measured in bfloat16, as LLM training uses them; cut-cross-entropy only so."""
FEWER_DIGITS = ("headtail", "PyTorch, full softmax")
"""Heads that are also measured with `torch.set_float32_matmul_precision("high")`: tf32."""
SWEEP = ("labels", "tiny")
"""Parts with every optimiser; the others have one."""
MOST_COMPILED = 10**6
"""Largest number of labels for compiled heads: compiling for each size takes longer than measuring.
"""


class Sizes(NamedTuple):
    """L, b, m and d."""

    labels: int
    batch: int
    negatives: int
    dim: int


def settings(part: str, cuda: bool) -> list[Sizes]:
    """The sizes of a part; hidden size 512 on a GPU, 64 on a CPU."""
    base = Sizes(10**6, 1024, 256, 512) if cuda else Sizes(10**5, 256, 256, 64)
    match part:
        case "labels":
            sizes = (
                (10**4, 13_330, 10**5, 10**6, 3 * 10**6, 10**7)
                if cuda
                else (10**4, 10**5, 10**6, 10**7)
            )
            return [base._replace(labels=size) for size in sizes]
        case "huge":  # narrow, so that a hundred million labels fit
            return [
                base._replace(labels=size, dim=64 if cuda else 8) for size in (10**4, 10**6, 10**8)
            ]
        case "m":
            return [base._replace(negatives=m) for m in (64, 256, 1024, 4096)]
        case "batch":
            return [base._replace(batch=b) for b in (64, 256, 1024, 4096)]
        case _:
            return [Sizes(500, 16, 8, 8)]


def cells_of(parts: list[str], device: str, hows: list[str], peers: list[str]) -> list[Cell]:
    """All cells, headtail's first; graphed ones last: a failed capture may break a process."""
    cells = []
    for how, part in itertools.product(hows, parts):
        for sizes, peer in itertools.product(settings(part, device == "cuda"), peers):
            if not measured(peer, how, part, device, sizes.labels):
                continue
            every = OPTIMISERS[peer]
            one = "sgd" if device == "cuda" else "adagrad"
            for optimiser in every if part in SWEEP and how != "compiled" else (one,):
                kinds = dtypes(peer, optimiser, device)
                cells += [
                    Cell(part, peer, optimiser, how, device, dtype, *sizes) for dtype in kinds
                ]
    return cells


def measured(peer: str, how: str, part: str, device: str, labels: int) -> bool:
    """Whether a library supports this, and it is worth the time."""
    if ONLY_ON.get(peer, device) != device or (part == "huge" and peer != "headtail"):
        return False
    if how == "compiled":
        return peer not in NOT_COMPILED and labels <= MOST_COMPILED and part in SWEEP
    return how == "eager" or (device == "cuda" and peer not in NOT_GRAPHED)


def dtypes(peer: str, optimiser: str, device: str) -> list[str]:
    """The number types that a library is measured in."""
    half = device == "cuda" and optimiser == "sgd"
    more = ["tf32"] * (half and peer in FEWER_DIGITS) + ["bfloat16"] * (half and peer in HALF)
    return ["float32"] * (peer != "cut-cross-entropy") + more


def batches(cells: list[Cell], device: str) -> list[list[Cell]]:
    """Cells per process: one on the CPU, where memory is per process; all of a library on a GPU."""
    if device == "cpu":
        return [[cell] for cell in cells]
    return [
        [cell for cell in cells if cell.peer == peer]
        for peer in dict.fromkeys(cell.peer for cell in cells)
    ]


def command(cell: Cell, given: argparse.Namespace) -> list[str]:
    """The child process for a library."""
    if cell.peer == "TensorFlow":
        return [given.tensorflow, "-m", "peers.tensorflow_head"]
    return [given.fbgemm if cell.peer == "fbgemm" else sys.executable, "-m", "peers.heads"]


def row(cell: Cell, found: Found) -> dict[str, object]:
    """The CSV row of a cell."""
    sizes = {name: value for name, value in asdict(cell).items() if name != "shape"}
    return sizes | {name: found.get(name, "") for name in NUMBERS}


def table(rows: list[dict[str, object]]) -> str:
    """Rows as text."""
    lines = [
        f"{'':36} {'':8} {'':9} {'':8} {'labels':>11} {'b':>5} {'m':>5} {'d':>4} {'ms':>10} "
        f"{'above MiB':>10} {'× ours':>8}"
    ]
    for one in sorted(rows, key=lambda r: (r["part"], r["labels"], r["negatives"], r["batch"])):
        sizes = f"{one['labels']:>11,} {one['batch']:>5} {one['negatives']:>5} {one['dim']:>4}"
        who = f"{one['peer']!s:36} {one['optimiser']!s:8} {one['how']!s:9} {one['dtype']!s:8}"
        end = (
            f"   {one['reason']}"
            if one["reason"]
            else f"{one['ms']:>11} {one['above_mib']:>10} {one['times_headtail']:>8}"
        )
        lines.append(f"{who} {sizes}{end}")
    return "\n".join(lines)


def main() -> None:
    """Measure, record each row at once, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--part",
        nargs="+",
        default=["labels", "m", "batch", "huge"],
        choices=("labels", "m", "batch", "huge"),
    )
    parser.add_argument("--how", nargs="+", default=["eager", "compiled", "graphed"])
    parser.add_argument("--peers", nargs="+", default=list(OPTIMISERS))
    parser.add_argument(
        "--tensorflow", default=sys.executable, help="an interpreter with TensorFlow"
    )
    how_to_ask(parser, timeout=180)
    given = parser.parse_args()
    given.part = ["tiny"] if given.tiny else given.part
    env = threads_each(given.threads) | {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    rows = []
    ours = {}
    path = None
    for cells in batches(cells_of(given.part, given.device, given.how, given.peers), given.device):
        child = command(cells[0], given)
        if given.device == "cuda":
            answers = ask(child, cells, given.timeout, env)
        else:
            answers = [
                (cells[0], ask_in_quiet(child, cells[0], given.timeout, env, given.patience))
            ]
        for cell, found in answers:
            rows.append(row(cell, with_ratios(cell, found, ours)))
            path = None if given.tiny else append("head_step", [rows[-1]])
            print(table(rows[-1:]).splitlines()[1], flush=True)
    print(f"\n{table(rows)}\n{path}")


if __name__ == "__main__":
    main()
