"""Time to find the exact top 50 of 325,056 labels for the 587,084 test points of WikiLSHTC-325K.

Features like that data set's (1,617,899 of them, 42 per point), hidden size 512, all labels scored.
headtail: `top_labels`, with the encoder. PyTorch: `(hidden @ weight.T).topk(50)` for 1,024 points
at a time, eager and compiled, on hidden states computed in advance. The label ids are compared
before anything is timed.

Run: .venv/bin/python benchmarks/evaluation.py --device cpu [--points 2048]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import headtail as ht
from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.catalogue import CATALOGUE
from headtail.data.points import Points
from headtail.encoders import Bottleneck, Model
from headtail.evaluation.topk import top_labels
from machine import append

WIKI = CATALOGUE[2]
BLOCK = 1024
NUMBERS = ("seconds", "points_per_s", "seconds_for_all", "times_headtail", "agrees", "reason")


def points_like(features: int, labels: int, count: int) -> Points:
    """Random points: 42 features each, one label."""
    width = round(WIKI.features_per_point)
    columns = torch.randint(features, (count * width,), dtype=torch.int32)
    values = torch.rand(count * width)
    bag = Bag(torch.arange(0, count * width + 1, width), columns, values, features)
    return Points(bag, Ragged(torch.randint(labels, (count,)), torch.arange(count + 1)), labels)


def model_like(features: int, labels: int, dim: int, device: str) -> Model:
    """An untrained model."""
    known = ht.Labels.zipf(labels)
    head = ht.LabelHead(
        known, dim, ht.SampledSoftmaxLoss(ht.Uniform(known, 256), ht.Importance()), sparse=True
    )
    return Model(Bottleneck(features, dim, sparse=True), head).to(device).eval()


@torch.no_grad()
def by_torch(hidden: Tensor, weight: Tensor, k: int, best: Callable[..., Tensor]) -> Tensor:
    """Block by block."""
    return torch.cat([best(block, weight, k).cpu() for block in hidden.split(BLOCK)])


def best_of(hidden: Tensor, weight: Tensor, k: int) -> Tensor:
    """The top k labels."""
    return (hidden @ weight.T).topk(k).indices


def seconds_of(work: Callable[[], Tensor], repeats: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()  # the result is on the host, so nothing is left running
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    """Measure, record each row at once, print them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--points", type=int, default=0, help="2,048 on a CPU, all 587,084 on a GPU"
    )
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="small sizes, to check that everything runs; nothing is recorded",
    )
    given = parser.parse_args()
    count = given.points or (WIKI.num_test if given.device == "cuda" else 2048)
    features, labels = (2000, 3000) if given.tiny else (WIKI.num_features, WIKI.num_labels)
    torch.manual_seed(0)
    points = points_like(features, labels, count)
    model = model_like(features, labels, given.dim, given.device)
    weight = model.head.weight.detach()
    with torch.no_grad():
        blocks = (
            points.features.rows(torch.arange(at, min(at + BLOCK, count)))
            for at in range(0, count, BLOCK)
        )  # pyright: ignore[reportAttributeAccessIssue]
        hidden = torch.cat([model.encoder(block.to(given.device)) for block in blocks])
    ways: dict[str, Callable[[], Tensor]] = {
        "headtail": lambda: top_labels(model, points, given.k),
        "PyTorch": lambda: by_torch(hidden, weight, given.k, best_of),
        "PyTorch, compiled": lambda: by_torch(hidden, weight, given.k, compiled),
    }
    compiled = torch.compile(best_of)
    ours = None
    path = None
    for peer, way in ways.items():
        sizes = {
            "device": given.device,
            "points": count,
            "labels": labels,
            "dim": given.dim,
            "k": given.k,
        }
        found: dict[str, object] = dict.fromkeys(NUMBERS, "")
        try:
            got = way()
            reference = by_torch(hidden[:BLOCK], weight, given.k, best_of)
            seconds = seconds_of(way, given.repeats)
        except Exception as error:
            found["reason"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[
                :240
            ]
        else:
            ours = seconds if ours is None else ours
            # Scores may differ in their last digit, so neighbours may swap: compare sets.
            same = (got[:BLOCK].sort(1).values == reference.sort(1).values).all(1).double().mean()
            found |= {
                "seconds": round(seconds, 4),
                "points_per_s": round(count / seconds),
                "agrees": round(float(same), 4),
            }
            found |= {
                "seconds_for_all": round(seconds / count * WIKI.num_test, 2),
                "times_headtail": f"{seconds / ours:.3g}",
            }
        row = {**sizes, "peer": peer, **found, "threads": torch.get_num_threads()}
        path = None if given.tiny else append("evaluation", [row])
        print("   ".join(f"{key} {value}" for key, value in row.items() if value != ""), flush=True)
    print(path)


if __name__ == "__main__":
    main()
