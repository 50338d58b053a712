"""Rows behind those that a table has, while it stays the same parameter."""

from __future__ import annotations

import torch
from torch import Tensor

from headtail.device.host_memory import HostTensor
from headtail.rows.row_state import lengthened


def add_rows(table: Tensor, fresh: Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    """Put `fresh` rows behind a parameter's own, which stays the same object, and behind its
    optimiser state.
    """
    old = len(table)
    table.grad = None
    if isinstance(table, HostTensor):
        table.append(fresh)
    else:
        table.set_(torch.cat([table, fresh]))  # pyright: ignore[reportArgumentType]
    if optimizer is None:
        return
    group = next((g for g in optimizer.param_groups if any(p is table for p in g["params"])), {})
    state = optimizer.state.get(table, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() and len(value) == old:
            fill = group.get("initial_accumulator_value", 0.0) if name == "sum" else 0.0
            state[name] = lengthened(value, len(table), fill)
