"""Results that do not depend on timing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def determinism(wanted: bool, device: torch.device) -> Iterator[None]:
    """Within the block, sum in an order that does not depend on timing, if that is wanted.

    Kernels follow torch's own switch.
    """
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    benchmark_before = torch.backends.cudnn.benchmark
    switches = wanted and device.type == "cuda"
    if switches:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch insists on it
        torch.use_deterministic_algorithms(True)
    # Shapes stay the same, so it pays to try which convolution is the fastest; which one wins
    # depends on timing.
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        if switches:  # loads torch's compiler, which takes a second
            torch.use_deterministic_algorithms(deterministic_before)
        torch.backends.cudnn.benchmark = benchmark_before
