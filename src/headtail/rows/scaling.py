"""Steps with `GradScaler`, which leaves a step out where gradients of its own rank are infinite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState

from headtail.errors import HeadtailError
from headtail.rows.link import ranks_of, taker_of


def meets_scaler(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scaler cannot decide by itself: about gradients that it does not see, or about rows
    that are spread over ranks.
    """
    tables = _parameters(optimizer)
    return any(taker_of(p) is not None or ranks_of(p) is not None for p in tables)


def may_step(optimizer: torch.optim.Optimizer, scaler: Any) -> bool:
    """Whether a step that a scaler may have begun should be taken: all ranks take it, or none.

    Args:
        optimizer: as the scaler knows it.
        scaler: what was passed to `step`.
    """
    # A scaler that cannot pass itself, because `step` was replaced, leaves its scale here.
    scaler = getattr(optimizer, "grad_scale", None) if scaler is None else scaler
    if scaler is None:
        return True
    if any(taker_of(p) is not None for p in _parameters(optimizer)):
        raise HeadtailError(
            "`GradScaler` cannot unscale gradients taken `inside_backward`. Leave out one of the "
            "two."
        )
    if not isinstance(scaler, GradScaler):
        raise HeadtailError(
            "Ranks that hold different rows of a table must leave out the same steps, but this "
            "`step` was replaced by one that does not take `grad_scaler`. Train in bfloat16, which "
            "needs no `GradScaler`."
        )
    return _finite_everywhere(optimizer, scaler)


def _finite_everywhere(optimizer: torch.optim.Optimizer, scaler: GradScaler) -> bool:
    """Unscale gradients; whether they are finite on all ranks. The scaler then has that answer too,
    so that scales stay equal.
    """
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
    tables = _parameters(optimizer)
    found = scaler._found_inf_per_device(optimizer).values()
    highest = torch.zeros((), device=tables[0].device)
    for own in found:
        highest = torch.maximum(highest, own.to(highest.device))
    for ranks in dict.fromkeys(map(ranks_of, tables)):
        if ranks is not None:
            highest = highest.to(ranks.meeting_place(highest.device))
            ranks.reduce_(highest, highest=True)
    for own in found:
        own.copy_(highest)
    return not highest.item()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
