"""`headtail doctor`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.device import environment
from headtail.errors import HeadtailError
from headtail.files.atomic import check_writable
from headtail.files.cache_folder import cache_folder
from headtail.files.names import shown
from headtail.training.config import Run


@dataclass(frozen=True)
class Doctor:
    """Is this machine ready? Checks versions, cache folder, compiled kernels and GPU, and trains a
    small model. Exit code 1 if not.
    """

    def run(self) -> int:
        """Check and print."""
        console = Console()
        table = Table(header_style="bold", box=None, padding=(0, 2))
        for column in ("", "what", "found"):
            table.add_column(column)
        passed = True
        for name, check in CHECKS.items():
            try:
                with Console(stderr=True).status(name):
                    result = check()
                    mark = Text("✓", style="green3")
            except Exception as error:
                kind = "" if isinstance(error, HeadtailError) else f"{type(error).__name__}: "
                result = f"{kind}{error}"
                mark = Text("✗", style="red")
                passed = False
            table.add_row(mark, name, Text(shown(result)))
        console.print(table)
        console.print("All is well." if passed else "Something is missing: see the lines marked ✗.")
        return 0 if passed else 1


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in environment.versions().items())


def _cache() -> str:
    folder = cache_folder()
    check_writable(folder, "Set HEADTAIL_CACHE to a folder that can.")
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:,.0f} GiB free"


def _kernels() -> str:
    from headtail.data.bag import Bag
    from headtail.encoders.weighted_bag import plain_weighted_bag, weighted_bag

    bag = Bag(torch.tensor([0, 2, 3]), torch.tensor([0, 3, 1]).int(), torch.rand(3), 4)
    table = torch.randn(4, 8)
    start = time.perf_counter()
    compiled = weighted_bag(bag, table, sparse=True)
    seconds = time.perf_counter() - start
    if not torch.allclose(compiled, plain_weighted_bag(bag, table), atol=1e-6):
        raise HeadtailError(
            "The compiled kernel gives wrong numbers. Delete the folder `numba` in the cache and "
            "try again."
        )
    return f"compiled for this CPU, correct, first call {seconds:.1f} s"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none; everything runs on the CPU"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[0] / 2**30:,.0f} GiB free"


def _training() -> str:
    from headtail.data.synthetic import generate
    from headtail.training.trainer import Trainer

    data = generate("synthetic:points=400,test=50,features=200,labels=50")
    run = Run(scheme="within-batch:tail", dim=16, epochs=2, batch=32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        trained = Trainer(run, data, Path(folder), device=device).fit()
    losses = [value for _, metric, value in trained.state.curve if metric == "loss"]
    return f"{run.scheme}: loss {losses[0]:.2f} → {losses[-1]:.2f}"


CHECKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "processor": environment.machine,
    "GPU": _gpu,
    "cache folder": _cache,
    "CPU kernels": _kernels,
    "training": _training,
}
