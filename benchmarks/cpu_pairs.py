"""headtail against plain PyTorch on a CPU, in interleaved pairs: the label head, a whole training
step, and the exact top 50.

A pair is a group of steps of one, then of the other, in an order that changes from pair to pair.
`times_headtail` is the median over the pairs of PyTorch's time over headtail's; `least` and `most`
are the extremes. Both work on the same table and the same optimiser state, in turns, so that large
tables fit and caches are the same.

`head`: as in `head_step.py`, with uniform targets. headtail's loop is an ordinary one (`loop`:
`head(hidden, target)`, `loss.backward()`, `optimizer.step()`, `optimizer.zero_grad()`) or updates
rows inside backward (`at-once`), as its trainer does. PyTorch: `F.embedding(sparse=True)` with
`SGD`, `Adagrad` and `SparseAdam`.
`step`: as in `epoch.py`, with the counts of WikiLSHTC-325K, batch 256, hidden size 512; PyTorch's
sparse step, and a full softmax with dense gradients.
`topk`: `head.topk` against `(hidden @ weight.T).topk(50)`, for 1,024 points, for 64 and for one,
and for 256 as on a processor without fast bfloat16 products (`no bfloat16`).

Run: .venv/bin/python benchmarks/cpu_pairs.py [--part head step topk] [--threads 2]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from peers import heads, steps
from peers.cells import Cell, Watch
from torch import Tensor, nn

import headtail as ht
from headtail.data.catalogue import CATALOGUE
from headtail.data.synthetic import generate
from headtail.kernels.cpu import topk as cpu_topk
from headtail.training.trainer import Trainer
from machine import append

Step = Callable[[], object]
PAIRS = 7
WARM = 10
SECONDS = 0.15
"""How long a group of steps takes, about."""
WIKI = CATALOGUE[2]
HEAD_LABELS = (10**4, 10**5, 10**6, 10**7)
OPTIMISERS = ("sgd", "adagrad", "adam")
COPIES = {"sgd": 1, "adagrad": 2, "adam": 3}
"""A table and its optimiser state, in tables."""
NUMBERS = ("headtail_ms", "pytorch_ms", "times_headtail", "least", "most", "others", "reason")


def paired(ours: Step, theirs: Step, warm: int = WARM) -> dict[str, object]:
    """Times of both in turns, and their ratio."""
    for step in (ours, theirs):
        for _ in range(warm):
            step()
    counts = [max(1, round(SECONDS / _timed(step, 1))) for step in (ours, theirs)]
    watch = Watch()
    times = []
    for pair in range(PAIRS):
        both = [(ours, counts[0]), (theirs, counts[1])]
        order = both if pair % 2 == 0 else both[::-1]
        taken = [_timed(*one) for one in order]
        times.append(taken if pair % 2 == 0 else taken[::-1])
    ratios = [b / a for a, b in times]
    mine, other = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    return {
        "headtail_ms": round(mine, 4),
        "pytorch_ms": round(other, 4),
        "times_headtail": f"{statistics.median(ratios):.3g}",
        "least": f"{min(ratios):.3g}",
        "most": f"{max(ratios):.3g}",
        "others": watch.others(),
    }


def _timed(step: Step, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begun) / count


def share_state(
    ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, tables: list[tuple[Tensor, Tensor]]
) -> None:
    """Give headtail's optimiser the state of PyTorch's: both have the same names for it."""
    for mine, other in tables:
        for name, value in theirs.state[other].items():
            if isinstance(value, Tensor) and value.shape == mine.shape:
                ours.state[mine][name] = value


def head_pair(cell: Cell) -> dict[str, object]:
    """A step of the label head."""
    labels = ht.Labels.from_counts(torch.ones(cell.labels, dtype=torch.int64))
    loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, cell.negatives), ht.Importance())
    head = ht.LabelHead(labels, cell.dim, loss, sparse=True)
    at_once = cell.how == "at-once"
    kind = {"adagrad": ht.RowAdagrad, "sgd": ht.RowSGD, "adam": ht.RowAdam}[cell.optimiser]
    optimiser = kind(head.parameters(), lr=heads.LR).inside_backward(at_once, at_once=at_once)
    weight = nn.Parameter(head.weight.data)
    plain = heads.optimiser_of(weight, cell, sparse=True)
    batches = _batches(cell)
    hidden = torch.randn(cell.batch, cell.dim, requires_grad=True)

    def ours() -> None:
        hidden.grad = None
        optimiser.zero_grad()
        if at_once:
            ht.functional.backward(head(hidden, next(batches), ignore_index=None))
        else:
            head(hidden, next(batches)).backward()
        optimiser.step()

    def theirs() -> None:
        hidden.grad = None
        plain.zero_grad()
        ids = torch.randint(cell.labels, (cell.negatives,))
        heads.sampled_loss(hidden, weight, next(batches), ids, sparse=True).backward()
        plain.step()

    theirs()
    share_state(optimiser, plain, [(head.weight, weight)])
    return paired(ours, theirs)


def _batches(cell: Cell) -> Iterator[Tensor]:
    return itertools.cycle(torch.randint(cell.labels, (256, cell.batch)).unbind())


def step_pair(cell: Cell) -> dict[str, object]:
    """A whole training step on sparse features."""
    data = generate(cell.shape)
    trainer = Trainer(steps.run_of(cell), data, device="cpu")
    model = trainer.model
    sparse = cell.how == "sparse"
    own = [model.encoder.weight, model.head.weight]
    tables = [nn.Parameter(table.data) for table in own]  # pyright: ignore[reportArgumentType]
    theirs, plain = steps.torch_step_of(cell, data, sparse, tables)
    theirs()
    share_state(trainer.optimiser, plain, list(zip(own, tables, strict=True)))  # pyright: ignore[reportArgumentType]
    return paired(steps.headtail_step_of(cell, trainer), theirs, warm=3 if sparse else 1)


def topk_pair(cell: Cell) -> dict[str, object]:
    """The exact best labels of one block of points; also as on a processor without bfloat16."""
    screens = cpu_topk.screens
    if cell.how:
        cpu_topk.screens = lambda hidden: False
    try:
        return _topk_pair(cell)
    finally:
        cpu_topk.screens = screens


def _topk_pair(cell: Cell) -> dict[str, object]:
    labels = ht.Labels.zipf(cell.labels)
    loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, 2), ht.Importance())
    head = ht.LabelHead(labels, cell.dim, loss).eval()
    weight = head.weight.data
    hidden = torch.randn(cell.batch, cell.dim)
    k = min(50, cell.labels)
    best = head.topk(hidden, k).indices
    same = best.sort(1).values == (hidden @ weight.T).topk(k).indices.sort(1).values
    assert same.all(1).double().mean() > 0.99, "neighbours may swap, labels may not be missing"
    return paired(lambda: head.topk(hidden, k), lambda: (hidden @ weight.T).topk(k).indices, warm=1)


def cells_of(part: str, tiny: bool) -> Iterator[Cell]:
    """The cells of a part."""
    if part == "head":
        sizes = ((500,), (8,)) if tiny else (HEAD_LABELS, (64, 512))
        ways = itertools.product(*sizes[::-1], OPTIMISERS, ("loop", "at-once"))
        for dim, labels, optimiser, how in ways:
            yield Cell(part, "", optimiser, how, "cpu", "float32", labels, 256, 256, dim)
    elif part == "topk":
        labels, dim = (500, 8) if tiny else (WIKI.num_labels, 512)
        for batch, how in ((1, ""), (64, ""), (256, "no bfloat16"), (1024, "")):
            yield Cell(part, "", "", how, "cpu", "float32", labels, batch, 0, dim)
    else:
        shape = f"synthetic:{WIKI.name.lower()},points=250000,test=1000"
        sizes = (WIKI.num_labels, 256, 256, 512, shape)
        if tiny:
            shape = "synthetic:points=2000,test=300,features=5000,labels=600,features-a-point=20"
            sizes = (600, 32, 16, 16, shape)
        for optimiser in OPTIMISERS:
            yield Cell(part, "", optimiser, "sparse", "cpu", "float32", *sizes)
        yield Cell(part, "", "sgd", "full-softmax", "cpu", "float32", *sizes)


def needed_gib(cell: Cell) -> float:
    """Memory of the tables, their optimiser state and, with full softmax, their gradients."""
    rows = cell.labels + (WIKI.num_features if cell.shape.startswith("synthetic:wiki") else 0)
    copies = COPIES.get(cell.optimiser, 1) + (cell.how == "full-softmax")
    scores = cell.batch * cell.labels * 2 if cell.part == "topk" else 0
    return 4 * (rows * cell.dim * copies + scores) / 2**30


def free_gib() -> float:
    """Memory that is free on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvail")) / 2**20


def measured(cell: Cell) -> dict[str, object]:
    """A pair, or the reason why not."""
    if needed_gib(cell) > 0.9 * free_gib():
        needed = math.ceil(needed_gib(cell))
        return {"reason": f"needs {needed} GiB, free are {free_gib():.0f}"}
    torch.manual_seed(0)
    pair = {"head": head_pair, "step": step_pair, "topk": topk_pair}[cell.part]
    return pair(cell)


def main() -> None:
    """Measure, record each row at once and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", default=["head", "step", "topk"])
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 512], help="of the head part")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tiny", action="store_true", help="small sizes; nothing is recorded")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for cell in itertools.chain.from_iterable(cells_of(part, given.tiny) for part in given.part):
        if cell.part == "head" and cell.dim not in given.dims and not given.tiny:
            continue
        found = dict.fromkeys(NUMBERS, "") | measured(cell)
        gc.collect()
        sizes = {"labels": cell.labels, "batch": cell.batch, "m": cell.negatives, "dim": cell.dim}
        names = {"part": cell.part, "optimiser": cell.optimiser, "how": cell.how}
        row = {**names, **sizes, "threads": given.threads, **found}
        if not given.tiny:
            append("cpu_pairs", [row])
        print(
            "  ".join(f"{name} {value}" for name, value in row.items() if value != ""), flush=True
        )


if __name__ == "__main__":
    main()
