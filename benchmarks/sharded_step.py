"""What sharing adds to a captured head: `ShardedLabelHead` on one rank with NCCL, against
`LabelHead`. All collectives are issued; for a single rank, NCCL makes copies of them.

Both run in the same eager loop on one GPU: hidden states that require a gradient, forward, backward
and the step of a row optimiser; b 1024, m 256, d 512. `ms` is the median over rounds of ten steps
of each, in random order; `added_ms` is the median of paired differences to `LabelHead`. `gpu_ms` is
the time that kernels ran. `captured` says what each head holds as graphs.

Run: .venv/bin/python benchmarks/sharded_step.py [--labels 325056 3000000] [--tiny]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from own_loop import ROUNDS, WARM_UP, gpu_ms, seconds

from headtail import LabelHead, Labels, RowAdagrad, scheme
from headtail.distributed import ShardedLabelHead
from machine import append

Head = LabelHead | ShardedLabelHead


def step_of(head: Head, batch: int, dim: int) -> Callable[[], None]:
    """One training step of a head."""
    device = head.weight.device
    hidden = torch.randn(batch, dim, device=device, requires_grad=True)
    target = torch.randint(head.labels.num_labels, (batch,), device=device)
    optimizer = RowAdagrad(head.parameters(), lr=0.01, per_row=True)

    def step() -> None:
        head(hidden, target).backward()
        optimizer.step()
        optimizer.zero_grad()
        hidden.grad = None

    return step


def rows_of(
    num_labels: int, name: str, sizes: tuple[int, int, int], device: str, rounds: int
) -> list[dict[str, object]]:
    """A row for each head."""
    batch, negatives, dim = sizes
    labels = Labels.zipf(num_labels)
    wanted = f"{name}@{batch if name.startswith('within-batch') else negatives}"
    heads: dict[str, Head] = {
        "LabelHead": LabelHead(labels, dim, scheme(wanted, labels), sparse=True, device=device),
    }
    ways = {"messages captured": {"messages": True}, "messages eager": {}, "eager": {"on": False}}
    for way, options in ways.items():
        sharded = ShardedLabelHead(labels, dim, scheme(wanted, labels), device=device).to(device)
        heads[f"ShardedLabelHead, {way}"] = sharded.capture(**options)
    steps = {which: step_of(head.to(device), batch, dim) for which, head in heads.items()}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    taken: dict[str, list[float]] = {which: [] for which in steps}
    for _ in range(rounds):
        order = list(steps)
        random.shuffle(order)
        for which in order:
            taken[which].append(1000 * seconds(steps[which]))
    alone = taken["LabelHead"]
    return [
        {
            "labels": num_labels,
            "scheme": wanted,
            "batch": batch,
            "dim": dim,
            "head": which,
            "captured": str(head.captured.shapes),
            "ms": round(statistics.median(taken[which]), 4),
            "added_ms": round(
                statistics.median(a - b for a, b in zip(taken[which], alone, strict=True)), 4
            ),
            "gpu_ms": round(gpu_ms(steps[which]), 4),
        }
        for which, head in heads.items()
    ]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", nargs="+", type=int, default=[325_056, 3_000_000])
    parser.add_argument("--schemes", nargs="+", default=["uniform:importance", "within-batch:tail"])
    parser.add_argument("--tiny", action="store_true", help="small sizes; records nothing")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measures messages of NCCL on a GPU, and there is none here.")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519"}
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    sizes = (16, 8, 16) if given.tiny else (1024, 256, 512)
    for num_labels in given.labels:
        for name in given.schemes:
            rows = rows_of(num_labels, name, sizes, "cuda", 3 if given.tiny else ROUNDS)
            for row in rows:
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            if not given.tiny:
                append("sharded_step", rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
