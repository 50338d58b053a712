"""What a label table that is spread over ranks costs, on paper: memory per rank, bytes per step by
collective, and predicted step times. And how good such predictions are, on ranks of this machine.

`paper`: one billion labels with 128 dimensions on 8, 64 and 256 H200s. Local work is fitted to the
measured steps of one H200 in `results/head_step.csv`, and its bytes take what a copy takes there;
links are as their makers state them. Bytes that travel are those of `headtail.distributed.traffic`,
which `tests/distributed` compares with what is sent.
`gloo`: predictions of the same kind for 2 and 4 processes here, against measured steps
(`scale_gloo.py`).

The model: a collective takes ⌈log₂ n⌉ · latency + bytes · time per byte, collectives wait for each
other and for local work, and all ranks are equally fast. `all_reduce` goes through the ranks twice.

Run: .venv/bin/python benchmarks/scale.py [--part paper gloo] [--batch 1024] [--negatives 2048]
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import dataclass

import numpy as np

from headtail.distributed.traffic import Message, StepShape, sent_per_step, step_messages
from machine import RESULTS, append

LABELS, DIM = 10**9, 128
RANKS = (8, 64, 256)
GPUS_PER_NODE = 8
H200_BYTES = 141e9
"""Memory of an H200, as NVIDIA's data sheet states it."""
COLUMNS = (
    *("part", "ranks", "labels", "dim", "batch", "negatives", "number", "how", "what", "unit"),
    *("value", "measured", "error", "rounds", "load"),
)


@dataclass(frozen=True)
class Link:
    """How ranks reach each other.

    Attributes:
        per_second: bytes that a rank sends in a second while others send too.
        latency: seconds from one rank to the next, launch included.
    """

    per_second: float
    latency: float

    def seconds(self, message: Message, ranks: int) -> float:
        """Of one collective."""
        if ranks == 1:
            return 0.0
        hops = math.ceil(math.log2(ranks)) * (2 if message.collective == "all_reduce" else 1)
        return hops * self.latency + message.sent(ranks) / self.per_second


NVLINK = Link(450e9, 5e-6)
"""NVLink 4: 900 GB/s in both directions together (NVIDIA's data sheet of the H200). The latency is
an assumption."""
NODES = Link(min(450e9, GPUS_PER_NODE * 50e9), 10e-6)
"""InfiniBand NDR: 400 Gb/s for each GPU (NVIDIA's data sheet of ConnectX-7). All eight links of a
node carry a part of each ring, so a ring is as fast as they are together. The latency is an
assumption."""
ONE_LINK = Link(50e9, 10e-6)
"""The same if each GPU's data go through its own link alone."""


COPIED = 4.2e12
"""Bytes per second of a copy on an H200, measured."""
PASSES = 4
"""Times that a step in stages goes through [examples of all ranks, dim]: it reads their hidden
states, writes and reads entries of the positives' rows, and writes gradients of the hidden states.
"""
BUFFERS = 3
"""What a rank holds of that size: the hidden states, their gradients, and those entries."""


@dataclass(frozen=True)
class Local:
    """Time of a rank's own work: a fixed part, operations at a rate, and bytes at another."""

    fixed: float
    per_second: float

    def of_operations(self, examples: int, negatives: float, dim: int) -> float:
        """Three products of [examples, dim] and [negatives, dim], and the fixed part."""
        return self.fixed + 6 * examples * negatives * dim / self.per_second

    def of_bytes(self, examples: int, dim: int) -> float:
        """The passes, in float32."""
        return PASSES * 4 * examples * dim / COPIED


def fitted() -> tuple[Local, list[str], float]:
    """Local work on an H200: from the measured steps with one million labels, where m and the batch
    change. Also the rows it is fitted to, and the largest relative error of the fit.
    """
    with (RESULTS / "head_step.csv").open(newline="", encoding="utf-8") as file:
        rows = list(enumerate(csv.DictReader(file), 2))
    wanted = {"peer": "headtail", "how": "graphed", "device": "cuda", "labels": "1000000"}
    wanted |= {"optimiser": "sgd", "dtype": "float32", "dim": "512"}
    chosen = [
        (line, row)
        for line, row in rows
        if row["ms"] and all(row[name] == value for name, value in wanted.items())
    ]
    work = np.array([6.0 * int(r["batch"]) * int(r["negatives"]) * 512 for _, r in chosen])
    seconds = np.array([float(r["ms"]) / 1e3 for _, r in chosen])
    # Weighed by 1 / time: relative errors count.
    matrix = np.stack([np.ones_like(work), work], 1) / seconds[:, None]
    (fixed, slope), *_ = np.linalg.lstsq(matrix, np.ones_like(seconds), rcond=None)
    error = float(np.abs((fixed + slope * work) / seconds - 1).max())
    cited = [f"head_step.csv:{line}" for line, _ in chosen]
    return Local(float(fixed), 1 / float(slope)), cited, error


def memory_of(labels: int, ranks: int, dim: int) -> dict[str, float]:
    """Bytes of one rank by what they are for; `tests/distributed` counts them on small tables."""
    rows = -(-labels // ranks)
    return {
        "table, float32": rows * dim * 4.0,
        "table, bfloat16": rows * dim * 2.0,
        "row-wise Adagrad": rows * 4.0,
        "Adagrad": rows * dim * 4.0,
        "Adam": rows * dim * 8.0,
        "weight decay": rows * 8.0,
        "row counters": rows * 4.0,
        "counts": rows * 8.0,
        "sampler: uniform or within-batch": 0.0,
        "sampler: frequency": rows * 8.0,
        "sampler: log-uniform": rows * 16.0,
    }


def memory_of_step(examples: int, dim: int) -> dict[str, float]:
    """Bytes that a rank holds for a step in stages, by what they are for.

    Args:
        examples: of all ranks.
        dim: d.
    """
    return {"buffers of a step, float32": BUFFERS * 4.0 * examples * dim}


def paper(batch: int, negatives: int) -> list[dict[str, object]]:
    """Rows of the table on paper."""
    local, cited, error = fitted()
    source = f"{cited[0]} and {len(cited) - 1} more"
    rows = [
        row("fit", "fixed part", "us", local.fixed * 1e6, how=source, error=error),
        row("fit", "operations", "TFLOP/s", local.per_second / 1e12, how=source, error=error),
    ]
    for ranks in RANKS:
        sizes = {"ranks": ranks, "labels": LABELS, "dim": DIM}
        for what, size in memory_of(LABELS, ranks, DIM).items():
            rows.append(row("memory", what, "GB", size / 1e9, **sizes))
        sizes |= {"batch": batch, "negatives": negatives}
        for what, size in memory_of_step(batch * ranks, DIM).items():
            rows.append(row("memory", what, "GB", size / 1e9, **sizes))
        for number, dtype in ((4, "float32"), (2, "bfloat16")):
            shape = StepShape(batch, DIM, batch * ranks, number=number, staged=True)
            for what, size in sent_per_step(shape, ranks).items():
                rows.append(row("bytes", what, "MB", size / 1e6, number=dtype, **sizes))
            links = {"ring": NVLINK if ranks <= GPUS_PER_NODE else NODES}
            if ranks > GPUS_PER_NODE:
                links["one link"] = ONE_LINK
            for how, link in links.items():
                given = {"number": dtype, "how": how, **sizes}
                rows += times(shape, ranks, negatives, link, local, given)
    return rows


def times(
    shape: StepShape, ranks: int, negatives: int, link: Link, local: Local, given: dict[str, object]
) -> list[dict[str, object]]:
    """Predicted parts of a step, in microseconds."""
    messages = step_messages(shape)
    hops = sum(link.seconds(Message(m.what, m.collective, 0), ranks) for m in messages)
    total = sum(link.seconds(m, ranks) for m in messages)
    # Each rank scores the examples of all ranks, and draws its part of the negatives.
    examples = shape.examples * ranks
    work = local.of_operations(examples, negatives / ranks, shape.dim)
    passes = local.of_bytes(examples, shape.dim)
    parts = {
        "local": work,
        "local bytes": passes,
        "latency": hops,
        "transfer": total - hops,
        "step": work + passes + total,
    }
    return [row("time", what, "us", value * 1e6, **given) for what, value in parts.items()]


def row(part: str, what: str, unit: str, value: float, **others: object) -> dict[str, object]:
    """One line of `results/scale.csv`."""
    found = {"part": part, "what": what, "unit": unit, "value": _short(value), **others}
    return {name: found.get(name, "") for name in COLUMNS}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def shown(rows: list[dict[str, object]]) -> str:
    """The rows as a table with a column for each number of ranks."""
    lines: dict[tuple[object, ...], dict[object, object]] = {}
    for line in rows:
        names = ("part", "number", "how", "what", "unit")
        key = tuple(line[name] for name in names)
        lines.setdefault(key, {})[line["ranks"]] = line["value"]
    ranks = sorted({line["ranks"] for line in rows if line["ranks"]})
    text = [f"{'':58}" + "".join(f"{f'{n} ranks':>12}" for n in ranks)]
    for key, values in lines.items():
        name = " ".join(str(part) for part in key if part)
        cells = [values.get(n, "") for n in (ranks if "" not in values else [""])]
        text.append(f"{name:58}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(text)


def main() -> None:
    """Print the table and record its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", default=["paper", "gloo"])
    parser.add_argument("--batch", type=int, default=1024, help="examples of each rank")
    parser.add_argument("--negatives", type=int, default=2048, help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=15, help="of the measurements here")
    parser.add_argument("--tiny", action="store_true", help="small sizes; nothing is recorded")
    given = parser.parse_args()
    if "paper" in given.part:
        rows = paper(given.batch, given.negatives)
        print(shown(rows))
        if not given.tiny:
            append("scale", rows)
    if "gloo" in given.part:
        from scale_gloo import compared  # pyright: ignore[reportMissingImports]

        rows = compared(given.rounds, tiny=given.tiny)
        for line in rows:
            print("  ".join(f"{name} {value}" for name, value in line.items() if value != ""))
        if not given.tiny:
            append("scale", rows)


if __name__ == "__main__":
    main()
