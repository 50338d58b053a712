"""What a head adds to a user's own, eager training loop on a GPU.

An encoder (an MLP, or a transformer of two layers), AdamW (`fused=True`), and a head with its own
optimiser, in a plain `for` loop; b 1024, m 256, d 512. Peers: the same loss in plain PyTorch with
`F.embedding(sparse=True)` and torch's sparse optimisers, and with dense gradients.

`added_ms` is the median of paired differences to the same loop with `hidden.square().mean()` as its
loss, over rounds of ten steps of each, in random order. `gpu_ms` is the time that kernels of the
whole step ran (torch's profiler). `times_headtail` is a peer's added time over headtail's with the
same optimiser.

Run: .venv/bin/python benchmarks/own_loop.py [--labels 325056 3000000 10000000] [--tiny]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from peers.loops import PEERS, Setting, headtail, loop, no_head

from machine import append

STEPS = 10
"""Per round; a shared host stalls now and then, which many short rounds show as outliers."""
ROUNDS = 35
FEW_ROUNDS = 7
"""Of loops that take long: with a transformer, or with several passes per step."""
WARM_UP = 12
OPTIMISERS = ("sgd", "adagrad", "adam")
MANY = 3_000_000
"""Labels up to which tables of all heads fit on one GPU side by side. Above, optimisers are
measured one after the other, and dense gradients not at all.
"""


def seconds(step: Callable[[], None]) -> float:
    """Of one step, after all others are done."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS


def gpu_ms(step: Callable[[], None]) -> float:
    """Time that kernels of a step ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    total = sum(event.self_device_time_total for event in profile.key_averages())
    return total / 1000 / STEPS


def measured(
    loops: dict[tuple[str, str], Callable[[], None]], rounds: int
) -> dict[tuple[str, str], float]:
    """How many milliseconds a head adds to its loop: medians of paired differences."""
    for step in loops.values():
        for _ in range(WARM_UP):
            step()
    taken: dict[tuple[str, str], list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        order = list(loops)
        random.shuffle(order)
        for name in order:
            taken[name].append(1000 * seconds(loops[name]))
    without = taken["no head", ""]
    added = {
        name: statistics.median(a - b for a, b in zip(times, without, strict=True))
        for name, times in taken.items()
    }
    added["no head", ""] = statistics.median(without)
    return added


def rows_of(setting: Setting, peers: list[str], optimisers: list[str]) -> list[dict[str, object]]:
    """A row for each head."""
    torch.manual_seed(0)
    loops = {("no head", ""): loop(setting, no_head(setting))}
    heads = {name: PEERS[name] for name in peers}
    if "headtail" in peers:
        heads["headtail, not captured"] = partial(headtail, capture=False)
    for name, make in heads.items():
        for optimiser in optimisers:
            if setting.labels > MANY and name in ("PyTorch, dense", "headtail, not captured"):
                continue
            loops[name, optimiser] = loop(setting, make(setting, optimiser))
    is_slow = setting.encoder == "transformer" or setting.passes > 1
    added = measured(loops, FEW_ROUNDS if is_slow else ROUNDS)
    rows = []
    for (name, optimiser), step in loops.items():
        ours = added.get(("headtail", optimiser))
        ratio = "" if ours is None or name == "no head" else round(added[name, optimiser] / ours, 2)
        rows.append(
            asdict(setting)
            | {
                "head": name,
                "optimiser": optimiser,
                "added_ms": round(added[name, optimiser], 4),
                "gpu_ms": round(gpu_ms(step), 4),
                "times_headtail": ratio,
            }
        )
    return rows


def settings_of(given: argparse.Namespace) -> list[Setting]:
    """All loops that are measured."""
    sizes = {"batch": 16, "negatives": 8, "dim": 16} if given.tiny else {}
    every = [Setting(labels, **sizes) for labels in given.labels]
    first = given.labels[0]
    every += [Setting(first, scheme="within-batch:tail", **sizes)]
    every += [Setting(first, variant=variant, **sizes) for variant in given.variants]
    every += [Setting(first, encoder="transformer", **sizes)]
    return every


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", nargs="+", type=int, default=[325_056, 3_000_000, 10_000_000])
    parser.add_argument("--variants", nargs="*", default=["accumulate", "clip", "decay"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--optimisers", nargs="+", default=list(OPTIMISERS))
    parser.add_argument("--tiny", action="store_true", help="small sizes; records nothing")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measures loops on a GPU, and there is none here.")
    cells = [
        (setting, optimisers)
        for setting in settings_of(given)
        for optimisers in (
            [given.optimisers] if setting.labels <= MANY else [[one] for one in given.optimisers]
        )
    ]
    for setting, optimisers in cells:
        rows = rows_of(setting, given.peers, optimisers)
        for row in rows:
            print(
                f"{row['labels']:>10,} {row['encoder']:11} {row['scheme']:18} {row['variant']:10} "
                f"{row['head']:24} {row['optimiser']:8} {row['added_ms']:>9} {row['gpu_ms']:>9} "
                f"{row['times_headtail']}",
                flush=True,
            )
        if not given.tiny:
            append("own_loop", rows)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
