"""Time and memory of exact losses over all labels, by headtail and by plain PyTorch.

A step takes hidden states `[b, d]`, a label table `[L, d]` and targets `[b]`, and ends with the
loss and the gradients of hidden states and table; nothing is updated. Peers of the softmax:
`F.cross_entropy` of a product, eager and compiled (`torch.compile`, static shapes), and
`F.linear_cross_entropy`, whole and in chunks; of `--loss logistic`, one logistic loss per label,
sums of `F.softplus` over a product, eager and compiled. With `--margin logit-adjusted` log π is
added to the scores; as a bias to those of `F.linear_cross_entropy`.

All peers of a setting are timed in turns, one step each, for some rounds: `ms` is the median,
`times_headtail` the median over rounds of a peer's time over headtail's in the same round.
`above_mib` is the peak memory of a step above its inputs. `error` is the distance of the table's
gradient from plain PyTorch's, relative to its length. On a CPU, `others` is the number of cores
that other processes used meanwhile.

Run: .venv/bin/python benchmarks/exact_losses.py --device cpu [--labels 10000 100000 1000000]
     [--dtype float32 bfloat16 tf32] [--margin unit logit-adjusted] [--loss softmax logistic]
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from peers.cells import MIB, Watch, bound_memory, memory_mib, reset_peak
from torch import Tensor

import headtail as ht
from headtail.functional import decoupled_loss, softmax_loss
from headtail.losses import chunked
from machine import append, facts

NUMBERS = ("ms", "least_ms", "times_headtail", "above_mib", "error", "rounds", "others", "reason")

SLOW = 4
"""Peers that took so many times headtail's time in the first round are not timed again."""


class Setting(NamedTuple):
    """Sizes, types and the loss."""

    device: str
    dtype: str
    loss: str
    margin: str
    labels: int
    batch: int
    dim: int


class Batch(NamedTuple):
    """Inputs of a step."""

    hidden: Tensor
    weight: Tensor
    target: Tensor
    shift: Tensor | None
    margin: ht.LogitAdjusted | None


Loss = Callable[[Batch], Tensor]


def plain(hidden: Tensor, weight: Tensor, target: Tensor, shift: Tensor | None) -> Tensor:
    """The softmax from all scores at once."""
    scores = hidden @ weight.T
    return F.cross_entropy(scores if shift is None else scores + shift, target)


def plain_logistic(hidden: Tensor, weight: Tensor, target: Tensor, shift: Tensor | None) -> Tensor:
    """log(1 + e^−f_y) + Σ ρ log(1 + e^f_y'), a mean over examples, from all scores at once."""
    scores = hidden @ weight.T
    positive = scores.gather(1, target[:, None]).squeeze(1)
    terms = F.softplus(scores)
    of_positive = F.softplus(positive)
    if shift is not None:  # log π; ρ = π_y'/π_y
        rho = (shift - shift[target][:, None]).exp()
        return ((terms * rho).sum(1) - positive).mean()
    return (terms.sum(1) - of_positive + F.softplus(-positive)).mean()


def fused(batch: Batch, chunks: bool) -> Tensor:
    """`F.linear_cross_entropy`, in torch 2.13."""
    options = torch.nn.LinearCrossEntropyOptions() if chunks else None  # pyright: ignore[reportAttributeAccessIssue]
    return F.linear_cross_entropy(  # pyright: ignore[reportAttributeAccessIssue]
        batch.hidden, batch.weight, batch.target, linear_bias=batch.shift, options=options
    )


def peers(given: argparse.Namespace, loss: str) -> dict[str, Loss]:
    """What is compared; headtail first, with its own limits and perhaps with others."""
    torch._dynamo.reset()
    if loss == "logistic":
        compiled_logistic = torch.compile(plain_logistic, dynamic=False)
        return {
            "headtail": lambda batch: decoupled_loss(*batch[:3], batch.margin),
            "PyTorch": lambda batch: plain_logistic(*batch[:4]),
            "PyTorch, compiled": lambda batch: compiled_logistic(*batch[:4]),
        }
    compiled = torch.compile(plain, dynamic=False)
    ours: dict[str, Loss] = {"headtail": lambda batch: softmax_loss(*batch[:3], batch.margin)}
    for mib, tile in itertools.product(given.chunk_mib, given.tile_scores):
        ours[f"headtail, chunks of {mib} MiB, tiles of {tile}"] = with_limits(mib, tile)
    return ours | {
        "PyTorch": lambda batch: plain(*batch[:4]),
        "PyTorch, compiled": lambda batch: compiled(*batch[:4]),
        "F.linear_cross_entropy": lambda batch: fused(batch, chunks=False),
        "F.linear_cross_entropy, chunks": lambda batch: fused(batch, chunks=True),
    }


def with_limits(mib: int, tile: int) -> Loss:
    """headtail's loss with other sizes of chunks and tiles."""

    def loss(batch: Batch) -> Tensor:
        before = chunked.CHUNK_BYTES, chunked.TILE_SCORES
        chunked.CHUNK_BYTES = dict.fromkeys(before[0], mib * MIB)
        chunked.TILE_SCORES = dict.fromkeys(before[1], tile)
        try:
            return softmax_loss(*batch[:3], batch.margin)
        finally:
            chunked.CHUNK_BYTES, chunked.TILE_SCORES = before

    return loss


def batch_of(setting: Setting) -> Batch:
    """Random hidden states, table and targets."""
    dtype = torch.float32 if setting.dtype == "tf32" else getattr(torch, setting.dtype)
    kind = {"device": setting.device, "dtype": dtype}
    hidden = torch.randn(setting.batch, setting.dim, **kind)
    weight = torch.randn(setting.labels, setting.dim, **kind) * setting.dim**-0.5
    target = torch.randint(setting.labels, (setting.batch,), device=setting.device)
    margin = shift = None
    if setting.margin == "logit-adjusted":
        margin = ht.LogitAdjusted(ht.Labels.zipf(setting.labels))
        every_label = torch.arange(setting.labels, device=setting.device)
        shift = margin.log_negative(every_label).to(dtype)
    return Batch(hidden.requires_grad_(), weight.requires_grad_(), target, shift, margin)


def step(loss: Loss, batch: Batch) -> None:
    """Loss and gradients."""
    batch.hidden.grad = None
    batch.weight.grad = None
    loss(batch).backward()
    if batch.hidden.is_cuda:
        torch.cuda.synchronize()


def peak_mib(loss: Loss, batch: Batch) -> float:
    """The most memory of a step above that of its inputs."""
    batch.hidden.grad = None
    batch.weight.grad = None
    if batch.hidden.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / MIB
        step(loss, batch)
        return torch.cuda.max_memory_allocated() / MIB - before
    reset_peak()
    before = memory_mib("VmRSS")
    step(loss, batch)
    return memory_mib() - before


def measure(setting: Setting, given: argparse.Namespace) -> list[dict[str, object]]:
    """The rows of a setting."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if setting.dtype == "tf32" else "highest")
    batch = batch_of(setting)
    losses = peers(given, setting.loss)
    step(losses["PyTorch"], batch)
    right = batch.weight.grad.float()  # pyright: ignore[reportOptionalMemberAccess]
    losses = {name: loss for name, loss in losses.items() if name not in given.without}
    found: dict[str, dict[str, object]] = {name: dict.fromkeys(NUMBERS, "") for name in losses}
    for name, loss in list(losses.items()):
        try:
            step(loss, batch)  # loads and compiles
            away = batch.weight.grad.float().sub_(right).norm() / right.norm()  # pyright: ignore[reportOptionalMemberAccess]
            found[name]["error"] = f"{float(away):.2g}"
            found[name]["above_mib"] = round(peak_mib(loss, batch), 1)
        except Exception as error:
            found[name]["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]
            del losses[name]
    del right
    watch = Watch()
    times: dict[str, list[float]] = {name: [] for name in losses}
    begun = time.perf_counter()
    while not times["headtail"] or (
        len(times["headtail"]) < given.rounds and time.perf_counter() - begun < given.seconds
    ):
        for name, loss in losses.items():
            if times[name] and times[name][0] > SLOW * times["headtail"][0]:
                continue
            started = time.perf_counter()
            step(loss, batch)
            times[name].append(1000 * (time.perf_counter() - started))
    for name, every in times.items():
        pairs = zip(every, times["headtail"], strict=False)  # a slow peer has fewer
        ratios = [theirs / ours for theirs, ours in pairs]
        found[name] |= {
            "ms": round(statistics.median(every), 4),
            "least_ms": round(min(every), 4),
            "times_headtail": f"{statistics.median(ratios):.3g}",
            "rounds": len(every),
            "others": watch.others() if setting.device == "cpu" else "",
        }
    threads = {"threads": torch.get_num_threads()}
    return [{**setting._asdict(), "peer": name, **found[name], **threads} for name in found]


def main() -> None:
    """Measure setting by setting; record rows, and print them as CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--labels", nargs="+", type=int, default=[10**4, 10**5, 10**6])
    parser.add_argument("--batch", type=int, help="1,024 on a GPU, 256 on a CPU")
    parser.add_argument("--dim", type=int, help="512 on a GPU, 64 on a CPU")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--loss", nargs="+", default=["softmax"], choices=("softmax", "logistic"))
    parser.add_argument("--margin", nargs="+", default=["unit"])
    parser.add_argument("--rounds", type=int, default=15, help="the most rounds per setting")
    parser.add_argument("--seconds", type=float, default=20, help="seconds of rounds per setting")
    parser.add_argument("--threads", type=int, help="threads, on a CPU")
    parser.add_argument("--chunk-mib", nargs="*", type=int, default=[], help="other chunks, and")
    parser.add_argument("--tile-scores", nargs="*", type=int, default=[], help="tiles, to compare")
    parser.add_argument("--without", nargs="+", default=[], help="peers to leave out")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="small sizes, to check that everything runs; nothing is recorded",
    )
    given = parser.parse_args()
    cuda = given.device == "cuda"
    batch = given.batch or (1024 if cuda else 256)
    dim = given.dim or (512 if cuda else 64)
    if given.threads:
        torch.set_num_threads(given.threads)
    if not cuda:
        bound_memory()
    if given.tiny:
        given.labels, given.rounds = [5000], 2
    writer = None
    each = itertools.product(given.dtype, given.loss, given.margin, given.labels)
    for dtype, loss, margin, labels in each:
        rows = measure(Setting(given.device, dtype, loss, margin, labels, batch, dim), given)
        if not given.tiny:
            append("exact_losses", rows)
        if writer is None:
            writer = csv.DictWriter(sys.stdout, fieldnames=[*facts(), *rows[0]])
            writer.writeheader()
        writer.writerows(facts() | row for row in rows)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
