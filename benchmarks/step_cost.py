"""Claim: with `sparse=True` a training step of the label head costs about the same at any number of labels.

One step is: draw 256 frequency negatives, tail-weighted softmax, backward, row update; batch 256, hidden size 8 (so that 100
million labels fit into memory), RowSGD. Beside it, in the same run, the same step with dense gradients and torch's SGD, as far as
it is bearable.

Run: .venv/bin/python benchmarks/step_cost.py [largest number of labels]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from machine import append

import headtail as ht

BATCH, DIM, NEGATIVES = 256, 8, 256
LARGEST_DENSE = 10_000_000


def step_ms(size: int, sparse: bool, steps: int) -> float:
    """Median time of a step."""
    labels = ht.Labels.zipf(size)
    loss = ht.SampledSoftmaxLoss(ht.Frequency(labels, NEGATIVES), ht.Tail(labels))
    head = ht.LabelHead(labels, DIM, loss, sparse=sparse)
    optimiser = ht.RowSGD(head.parameters(), lr=0.1) if sparse else torch.optim.SGD(head.parameters(), lr=0.1)
    times = []
    for _ in range(steps + 3):
        hidden, target = torch.randn(BATCH, DIM), torch.randint(size, (BATCH,))
        start = time.perf_counter()
        optimiser.zero_grad()
        head(hidden, target).backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[3:])


def main() -> None:
    """All sizes; rows go to results/step_cost.csv."""
    torch.manual_seed(0)
    largest = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    rows = []
    for size in (10**4, 10**5, 10**6, 10**7, 10**8):
        if size > largest:
            break
        sparse = step_ms(size, sparse=True, steps=100)
        dense = step_ms(size, sparse=False, steps=20 if size < 10**6 else 5) if size <= LARGEST_DENSE else None
        print(f"{size:>11,} labels   sparse {sparse:7.2f} ms   dense {'–' if dense is None else f'{dense:9.2f}'} ms", flush=True)
        settings = {"batch": BATCH, "dim": DIM, "negatives": NEGATIVES, "threads": torch.get_num_threads()}
        rows.append({"labels": size, **settings, "sparse_ms": f"{sparse:.3f}", "dense_ms": "" if dense is None else f"{dense:.3f}"})
    print(append("step_cost", rows))


if __name__ == "__main__":
    main()
