"""What ran where: versions and machine, for results and for `headtail doctor`."""

from __future__ import annotations

import os
import platform
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
    "plotly",
    "tensorboard",
    "triton",
)


def versions() -> dict[str, str]:
    """Python and the packages that decide results; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine(device: str = "cpu") -> str:
    """The processor that does the work, in words."""
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
