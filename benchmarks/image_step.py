"""Time of a ResNet-56 step on small images (batch 128, 200 labels), alone and with several
processes on one GPU.

Target: at most 2.75 ms per step on an H200. Images are random bytes. Parts:

`trainer`: `Trainer` with the recipe for CIFAR, as users run it: images in GPU memory, augmented
there, one CUDA graph per step; and the same step run eagerly.
`bare`: the network with a plain linear layer and cross-entropy, eager and graphed; for comparison
also with torch's operations, compiled by torch, and a plain PyTorch network in channels-last layout
under autocast, compiled by torch (`--networks` chooses among them).
`norm`: batch norm with shortcut and rectifier, forward and backward, with headtail's kernels and
with torch, at the three shapes.
`conv`: 3 × 3 convolutions and their gradients (input and filter) with headtail's kernels and with
torch, at the three shapes.
`together`: several `trainer` processes at the same time; the time per step is the wall-clock time
divided by all their steps. Start NVIDIA's MPS first (`nvidia-cuda-mps-control -d`); otherwise
kernels of different processes take turns.

Run: .venv/bin/python benchmarks/image_step.py [--part trainer bare norm conv together]
     [--workers 1 2 4 8] [--profile] [--tiny]
`--profile` prints the slowest kernels of a step, and their number. `--tiny` is for a CPU: a few
steps of ResNet-20, not recorded.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peers.compiled_resnet import CompiledResNet
from torch import Tensor, nn

from headtail.core.targets import Ragged
from headtail.data.batches import TrainingBatch
from headtail.data.points import DataSet, Points
from headtail.device.graphs import graph_of
from headtail.encoders import ResNet
from headtail.encoders import norm as norms
from headtail.kernels.dispatch import use_kernels
from headtail.rows.optimizers import DenseSGD
from headtail.training.config import Run
from headtail.training.recipes import cifar
from headtail.training.resident import Resident
from headtail.training.trainer import Trainer
from machine import append

LABELS = 200
SIZE = 32
IN_A_ROW = 100
NETWORKS = ("headtail's kernels", "torch's operations", "compiled", "channels last, compiled")
Step = Callable[[], object]


def images(n: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    return torch.randint(256, (n, 3, SIZE, SIZE), dtype=torch.uint8), torch.randint(LABELS, (n,))


def wait() -> None:
    """Wait until the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(step: Step, steps: int) -> float:
    """Mean milliseconds per step, after some steps that are not counted."""
    for _ in range(max(3, steps // 10)):
        step()
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begun) / steps * 1e3


def profile(step: Step, name: str) -> None:
    """Print the slowest kernels of five steps."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    kind = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with watched(activities=[kind]) as seen:
        for _ in range(5):
            step()
        wait()
    table = seen.key_averages()
    by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(f"\n{name}: {sum(one.count for one in table) / 5:.0f} kernels per step")
    print(table.table(sort_by=by, row_limit=30, max_name_column_width=90))


def make_trainer(given: argparse.Namespace, scheme: str) -> Trainer:
    """A trainer with the recipe for small images."""
    run = Run(
        **asdict(
            replace(cifar(), encoder=given.model, batch=given.batch, precision=given.precision)
        ),
        scheme=scheme,
    )
    train, label = images(given.images)
    points = Points(train, Ragged(label, torch.arange(len(label) + 1)), LABELS)
    return Trainer(run, DataSet("random", points, points), device=given.device)


def endless(trainer: Trainer) -> Iterator[Any]:
    """Batches of epoch after epoch, as the trainer's step takes them."""
    return itertools.chain.from_iterable(trainer.step.order(epoch) for epoch in itertools.count())


def own_step(trainer: Trainer, order: Iterator[Any]) -> Tensor:
    """As users get it."""
    return trainer.step(next(order))


def eager_step(trainer: Trainer, batch: TrainingBatch) -> Tensor:
    """Eagerly."""
    return trainer.learner.learn(trainer.model(batch))


def of_trainer(given: argparse.Namespace) -> Iterator[tuple[str, Step]]:
    """Steps of a trainer: as users get them, and eagerly."""
    for scheme in given.schemes:
        trainer = make_trainer(given, scheme)
        order = endless(trainer)
        batches = trainer.batches
        trainer.model.train()
        dense_below = trainer.engine.dense_below
        resident = Resident(batches, trainer.device, dense_below=dense_below)
        batch = resident.take(*resident.look_up(next(batches.order(0))))
        yield f"{scheme}, {type(trainer.step).__name__}", partial(own_step, trainer, order)
        yield f"{scheme}, eager", partial(eager_step, trainer, batch)


class Bare(nn.Module):
    """A network with a plain linear layer."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.encoder = ResNet(
            int(given.model.removeprefix("resnet")), narrow=given.precision == "bfloat16"
        )
        self.linear = nn.Linear(self.encoder.dim, LABELS)

    def forward(self, some: Tensor, label: Tensor) -> Tensor:
        """The loss."""
        return F.cross_entropy(self.linear(self.encoder(some)), label)


def of_bare(given: argparse.Namespace) -> Iterator[tuple[str, Step]]:
    """Steps without the library's loop and head."""
    for how in given.networks:
        torch.manual_seed(0)
        peer = how == "channels last, compiled"
        model = (CompiledResNet(LABELS) if peer else Bare(given)).to(given.device)
        some, label = (one.to(given.device) for one in images(given.batch))
        optimiser = DenseSGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        loss_of = torch.compile(model) if "compiled" in how else model

        eager = partial(plain_step, loss_of, optimiser, some, label)
        with use_kernels(how == "headtail's kernels"):
            yield f"{how}, eager", eager
            if given.device == "cuda":
                yield f"{how}, graphed", captured(eager)


def plain_step(loss_of: nn.Module, optimiser: DenseSGD, some: Tensor, label: Tensor) -> None:
    """One step on the same batch."""
    optimiser.zero_grad(set_to_none=True)
    loss_of(some, label).backward()
    optimiser.step()


def captured(step: Step) -> Step:
    """A step as a CUDA graph."""
    return graph_of(step).replay


def norm_step(module: nn.Module, x: Tensor, shortcut: Tensor, grad: Tensor, kernels: bool) -> None:
    """Forward and backward of one batch norm."""
    for one in (x, shortcut, *module.parameters()):
        one.grad = None
    with use_kernels(kernels):
        module(x, shortcut).backward(grad)


def of_norm(given: argparse.Namespace) -> Iterator[tuple[str, Step]]:
    """Forward and backward of one batch norm, as a graph, so that launching does not matter."""
    dtype = torch.bfloat16 if given.precision == "bfloat16" else torch.float32
    for channels, side in ((16, SIZE), (32, SIZE // 2), (64, SIZE // 4)):
        for kernels in (True, False):
            module = norms.Norm(channels).to(given.device)
            shape = given.batch, side, side, channels
            x, shortcut, grad = (
                torch.randn(shape, device=given.device).to(dtype).permute(0, 3, 1, 2)
                for _ in range(3)
            )
            x.requires_grad_()
            shortcut.requires_grad_()

            step = partial(norm_step, module, x, shortcut, grad, kernels)
            name = f"{channels} channels, {'headtail' if kernels else 'torch'}"
            yield name, captured(step) if given.device == "cuda" else step


def conv_steps(x: Tensor, weight: Tensor, grad: Tensor, kernels: bool) -> dict[str, Step]:
    """A convolution, and its two gradients."""
    if kernels:
        from headtail.kernels.triton import convolution as cuda_conv

        return {
            "forward": partial(cuda_conv.conv2d, x, weight),
            "backward": partial(cuda_conv.conv2d_backward, grad, x, weight),
        }
    how = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    backward = partial(
        torch.ops.aten.convolution_backward, grad, x, weight, None, *how, [True, True, False]
    )
    return {"forward": partial(F.conv2d, x, weight, padding=1), "backward": backward}


def in_a_row(step: Step) -> None:
    """Repeat a step, so that launching the graph does not matter."""
    for _ in range(IN_A_ROW):
        step()


def of_conv(given: argparse.Namespace) -> Iterator[tuple[str, Step]]:
    """Many equal convolutions in a row, as a graph; on a CPU only torch's."""
    dtype = torch.bfloat16 if given.precision == "bfloat16" else torch.float32
    for channels, side in ((16, SIZE), (32, SIZE // 2), (64, SIZE // 4)):
        shapes = (
            (given.batch, side, side, channels),
            (channels, 3, 3, channels),
            (given.batch, side, side, channels),
        )
        x, weight, grad = (
            torch.randn(shape, device=given.device).to(dtype).permute(0, 3, 1, 2)
            for shape in shapes
        )
        for kernels in (True, False) if given.device == "cuda" else (False,):
            for what, step in conv_steps(x, weight, grad, kernels).items():
                name = (
                    f"{IN_A_ROW} x {what}, {channels} channels, "
                    f"{'headtail' if kernels else 'torch'}"
                )
                yield (
                    name,
                    captured(partial(in_a_row, step))
                    if given.device == "cuda"
                    else partial(in_a_row, step),
                )


def together(given: argparse.Namespace, workers: int) -> float:
    """Milliseconds per step over processes that train at the same time."""
    options = [
        "--steps",
        given.steps,
        "--device",
        given.device,
        "--model",
        given.model,
        "--batch",
        given.batch,
    ]
    options += [
        "--precision",
        given.precision,
        "--images",
        given.images,
        "--schemes",
        given.schemes[0],
        "--part",
        "worker",
    ]
    command = [sys.executable, __file__, *map(str, options)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    pipes = [
        (child.stdin, child.stdout)
        for child in children
        if child.stdin is not None and child.stdout is not None
    ]
    for _, out in pipes:
        while out.readline() not in ("ready\n", ""):
            pass
    begun = time.perf_counter()
    for into, _ in pipes:
        into.write("go\n")
        into.flush()
    for _, out in pipes:
        out.readline()
    spent = time.perf_counter() - begun
    for child in children:
        child.communicate()
    return spent / (workers * given.steps) * 1e3


def work(given: argparse.Namespace) -> None:
    """Run as one of the processes: prepare, wait for the signal, take the steps."""
    trainer = make_trainer(given, given.schemes[0])
    order = endless(trainer)
    trainer.model.train()
    milliseconds(lambda: trainer.step(next(order)), 20)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(given.steps):
        trainer.step(next(order))
    wait()
    print("done", flush=True)


def main() -> None:
    """Measure, print, record each row at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda")
    )
    parts = ["trainer", "bare", "norm", "conv"]
    parser.add_argument("--part", nargs="+", default=parts, choices=(*parts, "together", "worker"))
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--schemes", nargs="+", default=["within-batch:tail", "softmax"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.model = "resnet20"
        given.steps = 3
        given.images = 64
        given.batch = 8
        given.workers = [1, 2]
    if given.part == ["worker"]:
        work(given)
        return
    torch.backends.cudnn.benchmark = True  # as in training
    about = {"model": given.model, "precision": given.precision, "batch": given.batch}

    def keep(part: str, how: str, ms: float) -> None:
        print(f"{part:9} {how:45} {ms:8.3f} ms", flush=True)
        if not given.tiny:
            append("image_step", [{"part": part, "how": how, **about, "ms": f"{ms:.4f}"}])

    for part, steps in (
        ("trainer", of_trainer),
        ("bare", of_bare),
        ("norm", of_norm),
        ("conv", of_conv),
    ):
        for how, step in steps(given) if part in given.part else ():
            keep(part, how, milliseconds(step, given.steps))
            if given.profile:
                profile(step, f"{part}, {how}")
    for workers in given.workers if "together" in given.part else ():
        keep("together", f"{given.schemes[0]}, {workers} processes", together(given, workers))


if __name__ == "__main__":
    main()
