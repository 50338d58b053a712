"""Steps of a sharded head on gloo ranks of this machine, predicted and measured.

Calibration, in each round: each collective with few bytes and with many (its latency and its time
per byte over the loopback device), and the local work of a step, with collectives that copy instead
of sending. All ranks do so at once, because they share the cores, and the slowest one counts.
Prediction: local work, and latency + bytes · time per byte of each collective of `step_messages`.
Then real steps are measured, in the same round. Within a round means are taken, because means of
parts add up to the mean of their sum; recorded are medians over rounds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import headtail as ht
from headtail.distributed import ShardedLabelHead
from headtail.distributed.traffic import Message, StepShape, step_messages

SHAPES = ((100_000, 64, 256, 256), (100_000, 128, 1024, 512))
"""Labels, dimensions, examples of each rank, negatives of all."""
FEW, MANY = 2**10, 2**22
REPEATS = 8


def compared(rounds: int, *, tiny: bool = False) -> list[dict[str, object]]:
    """Rows of predictions and measurements for 2 and 4 ranks."""
    rows = []
    for ranks in (2, 4):
        for shape in ((500, 8, 16, 8),) if tiny else SHAPES:
            rows += _on_ranks(ranks, shape, 2 if tiny else rounds)
    return rows


def _on_ranks(ranks: int, shape: tuple[int, ...], rounds: int) -> list[dict[str, object]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.pt"
        mp.spawn(_rank, (ranks, port, shape, rounds, path), nprocs=ranks)  # pyright: ignore[reportPrivateImportUsage]
        found: list[dict[str, float]] = torch.load(path)
    return _rows(found, ranks, shape)


def _rows(
    found: list[dict[str, float]], ranks: int, shape: tuple[int, ...]
) -> list[dict[str, object]]:
    from scale import row  # pyright: ignore[reportMissingImports]

    labels, dim, batch, negatives = shape
    sizes: dict[str, object] = {"ranks": ranks, "labels": labels, "dim": dim, "batch": batch}
    sizes |= {"negatives": negatives, "rounds": len(found), "number": "float32", "how": "gloo"}
    sizes["load"] = round(os.getloadavg()[0], 1)
    messages = step_messages(StepShape(batch, dim, batch * ranks))
    predicted = [_predicted(one, messages) for one in found]
    measured = [one["step"] for one in found]
    errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
    rows = [
        row("gloo", name, "us", statistics.median(one[name] for one in found) * 1e6, **sizes)
        for name in found[0]
        if name != "step"
    ]
    value = statistics.median(predicted) * 1e6
    rows.append(
        row(
            "gloo",
            "step",
            "us",
            value,
            measured=round(statistics.median(measured) * 1e6, 1),
            error=round(statistics.median(errors), 3),
            **sizes,
        )
    )
    return rows


def _predicted(found: dict[str, float], messages: list[Message]) -> float:
    total = found["local"]
    for message in messages:
        few, many = (found[f"{message.collective}, {size} bytes"] for size in (FEW, MANY))
        per_byte = max(many - few, 0.0) / (MANY - FEW)
        total += few + max(message.size - FEW, 0) * per_byte
    return total


def _rank(
    rank: int, ranks: int, port: int, shape: tuple[int, ...], rounds: int, path: Path
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    step = _step(shape)
    pretended = _step(shape)
    for _ in range(3):
        step()
    found = []
    for _ in range(rounds):
        seconds = {}
        for name, call in _pings(ranks).items():
            seconds[name] = _timed(call)
        with _pretence(rank):
            pretended()
        seconds["local"] = _timed(pretended, lambda: _pretence(rank))
        seconds["step"] = _timed(step)
        found.append(seconds)
    if rank == 0:
        torch.save(found, path)
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()


def _timed(
    work: Callable[[], object], context: Callable[[], Any] = contextlib.nullcontext
) -> float:
    """Mean seconds of one call on the slowest rank; all ranks start together."""
    seconds = torch.zeros(REPEATS, dtype=torch.float64)
    for repeat in range(REPEATS):
        dist.barrier()
        with context():
            start = time.perf_counter()
            work()
            seconds[repeat] = time.perf_counter() - start
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds.mean())


def _step(shape: tuple[int, ...]) -> Callable[[], object]:
    """A training step of a head: forward, backward, row updates."""
    labels, dim, batch, negatives = shape
    loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, negatives), ht.Importance())
    head = ShardedLabelHead(ht.Labels.zipf(labels), dim, loss)
    optimizer = ht.RowAdagrad(head.parameters(), lr=0.01, per_row=True)
    hidden = torch.randn(batch, dim, requires_grad=True)
    target = torch.randint(labels, (batch,))

    def step() -> None:
        head(hidden, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _pings(ranks: int) -> dict[str, Callable[[], object]]:
    pings: dict[str, Callable[[], object]] = {}
    for size in (FEW, MANY):
        own = torch.zeros(size // 4)
        every = [torch.zeros(size // 4) for _ in range(ranks)]

        def gather(own: Any = own, every: Any = every) -> None:
            dist.all_gather(every, own)

        def reduce(own: Any = own) -> None:
            dist.all_reduce(own)

        def scatter(own: Any = own, every: Any = every) -> None:
            dist.reduce_scatter(own, every)

        calls = {"all_gather": gather, "all_reduce": reduce, "reduce_scatter": scatter}
        pings |= {f"{name}, {size} bytes": call for name, call in calls.items()}
    return pings


def _pretence(rank: int) -> ExitStack:
    """Collectives that copy this rank's tensors, as if all ranks had the same."""

    def all_gather(every: list[torch.Tensor], own: torch.Tensor, **_: Any) -> None:
        for part in every:
            part.copy_(own)

    def reduce_scatter(own: torch.Tensor, parts: list[torch.Tensor], **_: Any) -> None:
        own.copy_(parts[rank])

    stack = ExitStack()
    patches = {"all_gather": all_gather, "reduce_scatter": reduce_scatter}
    for name, function in patches.items():
        stack.enter_context(mock.patch.object(dist, name, function))
    stack.enter_context(mock.patch.object(dist, "all_reduce"))
    return stack
