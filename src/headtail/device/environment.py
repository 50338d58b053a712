"""Versions and machine, as they are recorded with results."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = (
    "headtail",
    "torch",
    "numpy",
    "scipy",
    "numba",
    "pyarrow",
    "safetensors",
    "tensorboard",
    "triton",
)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, as far as installed."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def machine(device: str = "cpu") -> str:
    """The processor that does the work, for example "AMD EPYC, 2 of 8 cores"."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{_cpu()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
