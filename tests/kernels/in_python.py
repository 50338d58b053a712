"""Kernels of the CPU as plain Python, in which an index out of range is an IndexError: compiled
code would read or write memory that is not its own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from headtail.kernels import dispatch

OUT = {
    "negative": -1,
    "far below": -(10**6),
    "one too many": 0,  # added to the size
    "huge": 10**6,
    "the largest int32": 2**31 - 1,
    "beyond int32": 2**32 + 1,
    "the largest int64": 2**63 - 1,
}
"""Indices that are out of range for tables of fewer than a million rows."""

MODULES = (
    "bag",
    "candidates",
    "dropout",
    "exponential",
    "inside",
    "loss",
    "loss_rows",
    "products",
    "rows",
    "topk",
)


def run_in_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace every compiled function by the one it was compiled from; tables of any size are
    worth kernels. Returns a list that the names of functions are added to as they are called.
    """
    from numba.core.dispatcher import Dispatcher

    called: list[str] = []
    # All are imported before the first is changed, or one would take over a changed function.
    for module in [import_module(f"headtail.kernels.cpu.{name}") for name in MODULES]:
        for function, value in vars(module).copy().items():
            if isinstance(value, Dispatcher):
                monkeypatch.setattr(module, function, _noted(value.py_func, called))
        if hasattr(module, "prefetch"):  # a hint to the processor, without effect
            monkeypatch.setattr(module, "prefetch", lambda *_: None)
    for limit in ("WORTH_GATHERING", "LARGE_TABLE", "WORTH_COMPILING"):
        monkeypatch.setattr(dispatch, limit, 1)
    return called


def _noted(function: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        called.append(function.__name__)
        with np.errstate(all="ignore"):
            return function(*arguments)

    return noted


def wrong(name: str, size: int, dtype: torch.dtype = torch.int64) -> int:
    """An index that a table of this size does not have, in this type."""
    return min(OUT[name] or size, torch.iinfo(dtype).max)
