"""The state that an optimiser keeps for the rows of a table, in the same kind of memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from headtail.device.host_memory import HostTensor, on_host
from headtail.errors import HeadtailError
from headtail.rows.rounding import widened


def row_state(
    state: dict[str, Any], p: Tensor, name: str, fill: float, *, one_per_row: bool = False
) -> Tensor:
    """A state tensor shaped like p, or `[T, 1]`. Rows that p has gained since the last step start
    with `fill`.
    """
    like = p[:, :1] if one_per_row else p
    if name not in state:
        state[name] = _new_state(p, like, fill)
    elif p.dim() and len(state[name]) < len(p):
        state[name] = lengthened(state[name], len(p), fill)
    value = state[name]
    if value.shape != like.shape:
        raise HeadtailError(
            f"The optimiser's `{name}` has the shape {list(value.shape)}, but its table "
            f"{list(like.shape)}. Load the state of an optimiser of this table."
        )
    if isinstance(value, HostTensor) and value.device != p.device:
        value.move(p.device)
    return value


def _new_state(p: Tensor, like: Tensor, fill: float) -> Tensor:
    dtype = widened(p[:0] if p.dim() else p).dtype  # bfloat16 would lose small steps
    if not isinstance(p, HostTensor):
        return torch.full_like(like, fill, dtype=dtype, memory_format=torch.contiguous_format)
    value = HostTensor.empty(like.shape, dtype, p.device, requires_grad=False)
    if fill:  # a new map holds zeros, and takes no memory before they are read
        value.fill_(fill)
    return value


def lengthened(state: Tensor, num_rows: int, fill: float) -> Tensor:
    """A state with further rows."""
    new = torch.full(
        (num_rows - len(state), *state.shape[1:]), fill, dtype=state.dtype, device=state.device
    )
    if not isinstance(state, HostTensor):
        return torch.cat([state, new])
    state.append(new)
    return state


def state_on_host(saved: dict[str, Any]) -> dict[str, Any]:
    """A `state_dict` of an optimiser in which state in host memory is on the CPU, not copied."""
    states = saved["state"]
    if not any(isinstance(v, HostTensor) for state in states.values() for v in state.values()):
        return saved
    there = {
        key: {name: on_host(v) if isinstance(v, Tensor) else v for name, v in state.items()}
        for key, state in states.items()
    }
    return {**saved, "state": there}


def without_host_state(saved: dict[str, Any], params: Iterable[Tensor]) -> dict[str, Any]:
    """A `state_dict` without the rows of tables in host memory: torch would copy them to a GPU."""
    states = dict(saved["state"])
    keys = chain.from_iterable(group["params"] for group in saved["param_groups"])
    for key, p in zip(keys, params, strict=False):  # torch refuses other numbers of them
        if isinstance(p, HostTensor) and key in states:
            states[key] = {name: v for name, v in states[key].items() if not _has_rows(v)}
    return {**saved, "state": states}


def put_on_host(
    saved: dict[str, Any], present: dict[str, Any], p: HostTensor, state: dict[str, Any]
) -> None:
    """Copy saved rows of state into host memory: in place where an optimiser has such rows already,
    because a CUDA graph refers to them by address.

    Args:
        saved: the state of one table.
        present: that of an optimiser before it loads this one.
        p: the table.
        state: where it goes.
    """
    for name, value in saved.items():
        if not _has_rows(value):
            continue
        wide = value.to(torch.promote_types(p.dtype, torch.float32))
        own = present.get(name)
        if isinstance(own, HostTensor) and own.shape == value.shape and own.dtype == wide.dtype:
            own.settle().copy_(wide)
            state[name] = own
        else:
            state[name] = HostTensor.of(wide, p.device)


def _has_rows(value: Any) -> bool:
    """Whether it is more than a count of steps."""
    return isinstance(value, Tensor) and value.dim() > 0
