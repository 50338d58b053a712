"""Which kernel runs: the only place that chooses between compiled kernels and plain PyTorch.

Each function below looks at the tensors at hand and returns a module (or function) with kernels for
them, or None where plain PyTorch does the work. The plain code is the specification; a kernel is
its fast twin. `use_kernels` switches between the two everywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from headtail.errors import check_choice

Mode = Literal["auto", "always", "off"]
MODES: tuple[Mode, ...] = ("auto", "always", "off")
HAS_TRITON = find_spec("triton") is not None
"""Triton comes with torch where torch has CUDA."""
HAS_NUMBA = find_spec("numba") is not None

WORTH_COMPILING = 2**15
"""Numbers in a model's largest table from which loading a compiler pays on a CPU."""
WORTH_GATHERING = 64
"""Rows from which gathering them is compiled."""
LARGE_TABLE = 16384
"""Labels from which the kernel for the best k is faster than blocks of products."""
MOST_BEST = 256
"""The largest k that kernel takes."""
MOST_TARGETS = 2**14
"""Targets that one program walks over in no more time than several launches take."""
FUSED_CHANNELS = (16, 32, 64)
"""Numbers of channels, in and out, that the convolution kernels take."""


@dataclass
class _Switch:
    """One for the process, not per thread: autograd runs backward passes on threads of its own."""

    mode: str


_switch = _Switch(os.environ.get("HEADTAIL_KERNELS", "auto").lower())


class use_kernels:  # noqa: N801 - reads like torch.set_grad_enabled
    """Use compiled kernels where they are faster, or plain PyTorch everywhere.

    It takes effect at once; as a context manager it restores what was set before. The environment
    variable `HEADTAIL_KERNELS` (`auto`, `always` or `off`) sets a process's first mode.

    Args:
        mode: True or "auto" for kernels where they pay, False or "off" for plain PyTorch, "always"
            for kernels also where a table is too small to be worth compiling for.

    >>> with use_kernels(False):
    ...     kernels_in_use()
    'off'
    """

    def __init__(self, mode: bool | Mode = True) -> None:
        if isinstance(mode, bool):
            mode = "auto" if mode else "off"
        check_choice("mode", mode, MODES)
        self._before = _switch.mode
        _switch.mode = mode

    def __enter__(self) -> use_kernels:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch.mode = self._before


def kernels_in_use() -> str:
    """The mode: "auto", "always" or "off"."""
    if _switch.mode not in MODES:
        check_choice("HEADTAIL_KERNELS", _switch.mode, MODES)
    return _switch.mode


def _engine(device: torch.device) -> Literal["cpu", "triton"] | None:
    """Which compiler serves this device, or None for plain PyTorch."""
    if torch.compiler.is_compiling() or kernels_in_use() == "off":
        return None
    if device.type == "cpu" and HAS_NUMBA:
        return "cpu"
    if device.type == "cuda" and HAS_TRITON:
        return "triton"
    return None


@cache
def _kernels(engine: str, name: str) -> Any:
    """A module of kernels, loaded when it is first needed: compilers take a while."""
    return import_module(f"headtail.kernels.{engine}.{name}")


def _floats(engine: str | None) -> tuple[torch.dtype, ...]:
    """What tables may hold."""
    return (torch.float32, torch.bfloat16) if engine == "triton" else (torch.float32,)


def worth_compiling(numbers: int) -> bool:
    """Whether loading a compiler pays for a model with so many numbers in its largest table."""
    return numbers >= WORTH_COMPILING or kernels_in_use() == "always"


def updates_rows(device: torch.device) -> bool:
    """Whether row-sparse gradients are fast on this device."""
    return device.type == "cpu" or _engine(device) is not None


def loss_kernels(*tensors: Tensor) -> Any:
    """Sampled losses with all their gradients, for inputs, a label table and perhaps biases."""
    engine = _engine(tensors[0].device)
    if engine is None or torch.is_autocast_enabled(tensors[0].device.type):
        return None
    floats = _floats(engine)
    for tensor in tensors:
        if tensor.dtype not in floats or not tensor.is_contiguous():
            return None
    return _kernels(engine, "loss")


def staged_kernels(*tensors: Tensor) -> Any:
    """The stages of the sampled softmax of ranks, for the tensors of `loss_kernels`, on a GPU."""
    if _engine(tensors[0].device) != "triton" or loss_kernels(*tensors) is None:
        return None
    return _kernels("triton", "staged")


def placing_kernels(ids: Tensor) -> Any:
    """Where labels are in a table that ranks share, on a GPU."""
    if _engine(ids.device) != "triton" or not ids.is_contiguous() or ids.dtype != torch.int64:
        return None
    return _kernels("triton", "places")


def row_kernels(table: Tensor, largest: int) -> Any:
    """Optimiser updates of a table's rows; `largest` is the size of the model's largest table."""
    engine = _engine(table.device)
    fits = table.is_contiguous() and table.dim() in (1, 2) and table.dtype in _floats(engine)
    if engine is None or not fits:
        return None
    if engine == "cpu" and not worth_compiling(largest):
        return None
    return _kernels(engine, "rows")


def near_rows_kernel(table: Tensor, rows: Tensor) -> Any:
    """Copying rows of a table in host memory to a GPU."""
    if _engine(table.device) != "triton" or not (table.is_contiguous() and rows.is_contiguous()):
        return None
    return _kernels("triton", "gather").gather


def grouping_kernel(device: torch.device) -> Any:
    """Reordering the entries of a row gradient so that equal rows are neighbours."""
    if _engine(device) != "triton":
        return None
    return _kernels("triton", "groups").grouped


def dense_adagrad_kernel(table: Tensor, total: Tensor, grad: Tensor) -> Any:
    """Adagrad with a dense gradient, on a GPU."""
    if _engine(table.device) != "triton":
        return None
    rows = _kernels("triton", "rows")
    return rows.adagrad_ if rows.fits(table, total, grad) else None


def targets_kernel(target: Tensor) -> Any:
    """Which targets count, on a GPU."""
    if _engine(target.device) != "triton" or not target.is_contiguous():
        return None
    if not 0 < len(target) <= MOST_TARGETS:
        return None
    return _kernels("triton", "targets").counted


def exact_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """What the exact softmax does with scores of this type, on a GPU."""
    if _engine(device) != "triton" or dtype == torch.float64:
        return None
    return _kernels("triton", "exact")


def exact_decoupled_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """What the exact decoupled losses do with scores of this type, on a GPU."""
    if _engine(device) != "triton" or dtype == torch.float64:
        return None
    return _kernels("triton", "exact_decoupled")


def bag_kernels(table: Tensor) -> Any:
    """Sparse features times a table."""
    engine = _engine(table.device)
    if engine is None or not table.is_contiguous() or table.dtype not in _floats(engine):
        return None
    return _kernels(engine, "bag")


def gather_kernels(device: torch.device, rows: int) -> Any:
    """Gathering rows of a bag in memory."""
    if _engine(device) != "cpu" or rows < WORTH_GATHERING:
        return None
    return _kernels("cpu", "bag")


def dropout_kernels(input: Tensor) -> Any:
    """Shift and dropout of hidden states."""
    engine = _engine(input.device)
    if engine is None or input.dtype != torch.float32 or not input.is_contiguous():
        return None
    return _kernels(engine, "dropout")


def topk_kernel(hidden: Tensor, table: Tensor, k: int) -> Any:
    """The best k labels of large float32 tables."""
    engine = _engine(hidden.device)
    floats = hidden.dtype == table.dtype == torch.float32
    if engine is None or not floats or torch.is_autocast_enabled(hidden.device.type):
        return None
    if len(table) < LARGE_TABLE or not 0 < k <= MOST_BEST or not table.is_contiguous():
        return None
    return _kernels(engine, "topk").topk


def block_kernel(hidden: Tensor, rows: Tensor) -> Any:
    """Products of hidden states with whole blocks of labels, without copying their rows."""
    if _engine(hidden.device) != "triton":
        return None
    blocks = _kernels("triton", "blocks")
    return blocks.products if blocks.fits(hidden, rows) else None


def image_kernel(images: Tensor) -> Any:
    """Normalising and augmenting images."""
    if _engine(images.device) != "triton" or not images.is_contiguous():
        return None
    return _kernels("triton", "images")


def norm_kernels(x: Tensor, shortcut: Tensor | None) -> Any:
    """Batch norm with shortcut and rectifier: channels last, a power of two of at least 8."""
    tensors = [x] if shortcut is None else [x, shortcut]
    if _engine(x.device) != "triton" or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    channels = x.shape[1]
    power_of_two = channels & (channels - 1) == 0
    if not (x.numel() > channels >= 8 and power_of_two and _channels_last(tensors, x.dtype)):
        return None
    return _kernels("triton", "norm")


def convolution_kernels(x: Tensor, weight: Tensor, stride: int, padding: int) -> Any:
    """3 × 3 convolutions in bfloat16 that keep the size, of few channels."""
    if _engine(x.device) != "triton" or not _channels_last([x, weight], torch.bfloat16):
        return None
    out, channels, *size = weight.shape
    few = channels in FUSED_CHANNELS and out in FUSED_CHANNELS
    addressable = 0 < x.numel() // channels * max(channels, out) < 2**31
    if not (size == [3, 3] and stride == padding == 1 and few and addressable):
        return None
    return _kernels("triton", "convolution")


def _channels_last(tensors: list[Tensor], dtype: torch.dtype) -> bool:
    layout = torch.channels_last
    return all(t.is_contiguous(memory_format=layout) and t.dtype == dtype for t in tensors)
