"""A training step of a head whose table is in host memory, at several sizes of the table.

Weights and the state of row-wise Adagrad fill the given gigabytes (10⁹ bytes); b 1024, m 256,
d 512, `uniform:importance`. Targets, hidden states and negatives are random and differ in every
step, also in a graph, so that no row is in a cache because the last step has read it.

`step_ms` is the whole step (draw, loss, all gradients, update) as one CUDA graph, the median of
replays of 16 steps. `loop_ms` is the same step in an eager loop, where the head and its optimiser
replay graphs of their own. `gpu_gib` is the most GPU memory that was allocated, `make_s` the time
until the table is mapped, pinned and filled with random numbers. `placement` "device" is the same
head in GPU memory, where that is large enough.

Goals: `step_ms` at most 0.30 with a table in host memory, and flat within 10% from 2 to 60 GB. The
script prints whether they are met.

Run: .venv/bin/python benchmarks/host_table.py [--gigabytes 2 20 60] [--placements host] [--tiny]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch

import headtail as ht
from headtail.device.graphs import graph_of
from machine import append

GOAL_MS = 0.30
GOAL_FLAT = 1.10
STEPS = 16
"""Per graph, and per round of a loop."""
ROUNDS = 25
WARM_UP = 12
BATCH = 1024
NEGATIVES = 256
DIM = 512
SPARE = 1.2
"""Times the size of a table that a GPU must have free to hold it."""


def make(
    num_labels: int, dim: int, negatives: int, placement: str, device: str
) -> tuple[ht.LabelHead, ht.RowAdagrad]:
    """A head and its optimiser."""
    labels = ht.Labels.from_counts(torch.ones(num_labels, dtype=torch.int64))
    loss = ht.scheme(f"uniform:importance@{negatives}", labels, ignore_index=None)
    head = ht.LabelHead(labels, dim, loss, sparse=True, device=device, placement=placement)  # pyright: ignore[reportArgumentType]
    head.loss.to(device)
    return head, ht.RowAdagrad(head.parameters(), lr=0.1, per_row=True)


def step_of(head: ht.LabelHead, optimizer: ht.RowAdagrad, batch: int) -> Callable[[], None]:
    """One step, on targets and hidden states of its own."""
    num_labels, dim = head.weight.shape
    device = head.weight.device

    def step() -> None:
        hidden = torch.randn(batch, dim, device=device, requires_grad=True)
        target = torch.randint(num_labels, (batch,), device=device)
        optimizer.zero_grad()
        head(hidden, target).backward()
        optimizer.step()

    return step


def milliseconds(run: Callable[[], object]) -> float:
    """Of one step, where a call takes `STEPS` of them: the median of rounds."""
    times = []
    for _ in range(ROUNDS):
        synchronise()
        begun = time.perf_counter()
        run()
        synchronise()
        times.append(1000 * (time.perf_counter() - begun) / STEPS)
    return round(statistics.median(times), 4)


def synchronise() -> None:
    """Wait for a GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(
    num_labels: int, dim: int, batch: int, negatives: int, placement: str
) -> dict[str, object]:
    """A row."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    head, optimizer = make(num_labels, dim, negatives, placement, device)
    synchronise()
    made = time.perf_counter() - begun
    step = step_of(head, optimizer, batch)
    for _ in range(WARM_UP):
        step()
    loop_ms = milliseconds(lambda: [step() for _ in range(STEPS)])
    captured = bool(head.captured.shapes)
    step_ms: float | str = ""
    if on_gpu:
        head.capture(False)  # a graph of its own would be inside the one that is made here
        optimizer.inside_backward(at_once=True)
        step_ms = milliseconds(graph_of(step, STEPS).replay)
    state = optimizer.state[head.weight]["sum"]
    return {
        "placement": placement,
        "gigabytes": round((head.weight.nbytes + state.nbytes) / 1e9, 3),
        "labels": num_labels,
        "dim": dim,
        "batch": batch,
        "negatives": negatives,
        "step_ms": step_ms,
        "loop_ms": loop_ms,
        "loop_captured": captured,
        "make_s": round(made, 2),
        "gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if on_gpu else "",
    }


def report(rows: list[dict[str, object]]) -> None:
    """Whether the goals are met."""
    times = [float(str(row["step_ms"])) for row in rows if row["placement"] == "host"]
    if not times:
        return
    flat = max(times) / min(times)
    print(f"slowest step {max(times)} ms: goal of {GOAL_MS} ms " + _met(max(times) <= GOAL_MS))
    print(f"slowest / fastest {flat:.3f}: goal of {GOAL_FLAT} " + _met(flat <= GOAL_FLAT))


def _met(holds: bool) -> str:
    return "met" if holds else "MISSED"


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[2, 20, 60])
    parser.add_argument("--placements", nargs="+", default=["host", "device"])
    parser.add_argument("--tiny", action="store_true", help="small sizes; records nothing")
    given = parser.parse_args()
    if not given.tiny and not torch.cuda.is_available():
        raise SystemExit("This measures a GPU, and there is none here. --tiny runs anywhere.")
    sizes = [0.0002, 0.0004] if given.tiny else given.gigabytes
    dim, batch, negatives = (16, 32, 8) if given.tiny else (DIM, BATCH, NEGATIVES)
    rows = []
    for gigabytes in sizes:
        num_labels = -(-int(gigabytes * 1e9) // (4 * dim + 4))
        for placement in given.placements:
            if placement == "device" and not given.tiny:
                free = torch.cuda.mem_get_info()[0]
                if SPARE * gigabytes * 1e9 > free:
                    print(f"{gigabytes} GB do not fit on this GPU")
                    continue
            row = measured(num_labels, dim, batch, negatives, placement)
            print(row, flush=True)
            rows.append(row)
            if not given.tiny:
                append("host_table", [row])
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    if torch.cuda.is_available():
        report(rows)


if __name__ == "__main__":
    main()
