"""`headtail doctor`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headtail.comparison.results import check_writable
from headtail.data.cache import cache_folder
from headtail.device import environment
from headtail.errors import HeadtailError
from headtail.training.config import Run


@dataclass(frozen=True)
class Doctor:
    """Is this machine ready? Looks at versions, cache folder, compiled kernels and GPU, and trains
    a little. Exit code 1 if not.
    """

    def run(self) -> int:
        """Check and print."""
        console = Console(highlight=False)
        table = Table(header_style="bold", box=None, padding=(0, 2))
        for column in ("", "what", "found"):
            table.add_column(column)
        well = True
        for name, look in CHECKS.items():
            try:
                with Console(stderr=True).status(name):
                    found = look()
                    good = True
            except Exception as error:
                found = (
                    str(error)
                    if isinstance(error, HeadtailError)
                    else f"{type(error).__name__}: {error}"
                )
                good = False
            well &= good
            table.add_row(
                Text("✓", style="green3") if good else Text("✗", style="red"), name, Text(found)
            )
        console.print(table)
        console.print("All is well." if well else "Something is missing: see the lines marked ✗.")
        return 0 if well else 1


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in environment.versions().items())


def _cache() -> str:
    folder = cache_folder()
    check_writable(folder, "Set HEADTAIL_CACHE to a folder that can.")
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:,.0f} GiB free"


def _kernels() -> str:
    from headtail.data.points import Bag
    from headtail.encoders.weighted_bag import plain_weighted_bag, weighted_bag

    bag = Bag(torch.tensor([0, 2, 3]), torch.tensor([0, 3, 1]).int(), torch.rand(3), 4)
    table = torch.randn(4, 8)
    begun = time.perf_counter()
    if not torch.allclose(
        weighted_bag(bag, table, sparse=True), plain_weighted_bag(bag, table), atol=1e-6
    ):
        raise HeadtailError(
            "The compiled kernel gives wrong numbers. Delete the folder `numba` in the cache and "
            "try again."
        )
    return f"compiled for this CPU, right, first call {time.perf_counter() - begun:.1f} s"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none; everything runs on the CPU"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[0] / 2**30:,.0f} GiB free"


def _training() -> str:
    from headtail.data.synthetic import generate
    from headtail.training.trainer import Trainer

    data = generate("synthetic:points=400,test=50,features=200,labels=50")
    run = Run(scheme="within-batch:tail", dim=16, epochs=2, batch=32)
    with tempfile.TemporaryDirectory() as folder:
        trained = Trainer(
            run, data, Path(folder), device="cuda" if torch.cuda.is_available() else "cpu"
        ).fit()
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
