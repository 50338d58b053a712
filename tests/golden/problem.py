"""A small fixed problem with numbers that must not change: draws, losses, gradients and weights.

`record(scheme, …)` trains a label head for twenty steps and keeps, per step, the drawn ids, the sum
of log q, the loss and projections of the table and of the gradient of the hidden states. `digest`
turns all of it, with the final table, into one number that changes with any bit.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import headtail as ht
from headtail.kernels.dispatch import use_kernels
from headtail.losses import SampledLoss
from headtail.samplers import Draw

LABELS = 512
DIM = 64
BATCH = 16
STEPS = 20
NEGATIVES = 8
SAMPLERS = (
    "uniform",
    "uniform(excluded)",
    "uniform(without-replacement)",
    "frequency",
    "frequency(0.5)",
    "frequency(0.75,excluded)",
    "frequency(0.75,without-replacement)",
    "log-uniform",
    "within-batch",
    "queue(64)",
    "mixture(uniform,within-batch)",
    "model",
    "model(masked)",
    "tilted",
    "hard(2)",
    "resampled(64)",
    "block(4)",
    "block(1)",
    "quadratic-kernel(4)",
    "fourier-kernel(4)",
    "adversarial(4)",
)
WEIGHTINGS = ("constant", "importance", "relative", "tail", "equalised", "adaptive")
FEW = ("uniform", "within-batch", "frequency", "queue(64)", "mixture(uniform,within-batch)")
"""Samplers that are tried with every weighting; the others with two."""
ALL_LABELS = ("softmax", "logit-adjusted", "equalised", "adaptive", "softmax+post-hoc")
DECOUPLED = ("logistic", "hinge", "squared-hinge", "contrastive")


def schemes() -> Iterator[str]:
    """Every scheme that is recorded."""
    yield "within-batch:infonce"
    for sampler in SAMPLERS:
        for weighting in WEIGHTINGS if sampler in FEW else ("importance", "tail"):
            yield f"{sampler}:{weighting}"
    yield from ALL_LABELS
    for loss in DECOUPLED:
        yield f"{loss}/uniform:importance"
        yield f"{loss}/within-batch:tail"
        yield f"{loss}/logit-adjusted"


def optimisers() -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    """One row optimiser of each kind; SGD is the one for every scheme."""
    return {
        "sgd": lambda params: ht.RowSGD(params, lr=0.5),
        "momentum": lambda params: ht.RowSGD(params, lr=0.2, momentum=0.9, weight_decay=0.01),
        "adagrad": lambda params: ht.RowAdagrad(params, lr=0.1, weight_decay=0.01),
        "per_row": lambda params: ht.RowAdagrad(params, lr=0.1, per_row=True),
        "adam": lambda params: ht.RowAdam(params, lr=0.01),
    }


def cases() -> Iterator[tuple[str, str, str]]:
    """(scheme, optimiser, dtype)."""
    for scheme in schemes():
        yield scheme, "sgd", "float64"
        yield scheme, "sgd", "float32"
    for optimiser in optimisers():
        yield "uniform:importance", optimiser, "float64"
        yield "uniform:importance", optimiser, "float32"


def record(scheme: str, optimiser: str, dtype: str, *, kernels: bool) -> dict[str, np.ndarray]:
    """Twenty steps, as arrays."""
    torch.manual_seed(1)
    number = getattr(torch, dtype)
    labels = ht.Labels.from_counts((2000 / torch.arange(1, LABELS + 1) ** 0.9).ceil().long())
    loss = ht.scheme(scheme, labels, None if "@" in scheme else NEGATIVES)
    sparse = isinstance(loss, SampledLoss)
    head = ht.LabelHead(labels, DIM, loss, sparse=sparse).to(number)
    step = optimisers()[optimiser](list(head.parameters()))
    draw_of = torch.Generator().manual_seed(2)
    projection = torch.randn(
        LABELS, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    ids = []
    log_q = []
    losses = []
    tables = []
    with use_kernels(kernels):
        for _ in range(STEPS):
            hidden = torch.randn(BATCH, DIM, generator=draw_of, dtype=torch.float64).to(number)
            hidden.requires_grad_()
            target = torch.multinomial(labels.prior, BATCH, replacement=True, generator=draw_of)
            with watching_draws(loss, ids, log_q):
                value = head(hidden, target)
            value.backward()
            step.step()
            step.zero_grad()
            losses.append(value.detach().double())
            tables.append((head.weight.detach().double() * projection).sum())
            tables.append((hidden.grad.double() * projection[:BATCH]).sum())
    arrays = {"loss": torch.stack(losses), "table": torch.stack(tables)}
    if ids:
        arrays["ids"] = torch.cat([drawn.reshape(-1) for drawn in ids]).to(torch.int16)
        arrays["id_sums"] = torch.stack([drawn.sum() for drawn in ids])
        arrays["log_q"] = torch.stack([drawn.double().sum() for drawn in log_q])
    return {name: tensor.numpy() for name, tensor in arrays.items()} | {
        "final": head.weight.detach().numpy()
    }


@contextmanager
def watching_draws(loss: torch.nn.Module, ids: list[Tensor], log_q: list[Tensor]) -> Iterator[None]:
    """Note every draw of the loss's sampler."""
    if not isinstance(loss, SampledLoss):
        yield
        return
    draw = loss.sampler.draw

    def noted(*args: object, **options: object) -> Draw:
        result = draw(*args, **options)
        ids.append(result.ids)
        log_q.append(result.log_q)
        return result

    loss.sampler.draw = noted
    try:
        yield
    finally:
        del loss.sampler.draw


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Changes with any bit of any array."""
    hashed = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(arrays[name]).tobytes())
    return hashed.hexdigest()


def made_with() -> dict[str, str]:
    """What decides the last bit: versions, and the processor."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "numba")}
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return versions | {
        "python": platform.python_version(),
        "cpu": cpu,
        "machine": platform.machine(),
    }


def summary(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is kept on disk; the drawn ids and the final table are in the digest only."""
    return {name: values for name, values in arrays.items() if name not in ("ids", "final")}


def write_data(folder: Path) -> None:
    """A small data set in the text format of the Extreme Classification Repository."""
    random = np.random.default_rng(0)
    labels = 60
    features = 80
    prior = 1 / np.arange(1, labels + 1) ** 0.8
    prior /= prior.sum()
    for part, points in (("train", 400), ("test", 120)):
        lines = [f"{points} {features} {labels}"]
        for _ in range(points):
            positives = sorted({*random.choice(labels, random.integers(1, 4), p=prior).tolist()})
            words = {(7 * y + 13 * j) % features: 1 + j for y in positives for j in range(3)}
            words[int(random.integers(features))] = 1
            text = " ".join(f"{word}:{value}" for word, value in sorted(words.items()))
            lines.append(f"{','.join(map(str, positives))} {text}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")


COMPARISON = [
    "--schemes",
    "uniform:importance",
    "within-batch:tail",
    "softmax",
    "softmax+post-hoc",
    "--epochs",
    "2",
    "--dim",
    "32",
    "--batch",
    "64",
    "--negatives",
    "16",
    "--lr",
    "0.02",
    "--dropout",
    "0.5",
    "--seeds",
    "2",
    "--workers",
    "1",
    "--device",
    "cpu",
]
"""Options of the tiny comparison."""
