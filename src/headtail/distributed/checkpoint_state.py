"""All that the next step of sharded training depends on, as tensors and numbers."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headtail.distributed.agree import refuse_differences
from headtail.distributed.checkpoint_contents import as_text
from headtail.distributed.checkpoint_options import is_plain, options_of
from headtail.distributed.checkpoint_parts import RowsOfAll, Trained, extra_of
from headtail.errors import HeadtailError
from headtail.rows.decay import catch_up, owed

State = dict[str, Tensor]


def settle(trained: Trained) -> None:
    """Apply pending weight decay where ranks count it differently; usually they do not.

    Decay that is still due is saved as it is, so that saving changes nothing that comes after. A
    row that moves to another rank needs that rank's sum to be the same. Every rank must call it.
    """
    named = trained.parameters()
    refuse_differences(trained.head.ranks, {"parameters": str(list(named))})
    parameters = list(named.values())
    sums = [_sum_bits(parameter) for parameter in parameters]
    every = trained.head.ranks.numbers(sums, torch.device("cpu"))
    for parameter, numbers in zip(parameters, zip(*every, strict=True), strict=True):
        if len(set(numbers)) > 1 or -1 in numbers:
            catch_up(parameter)


def _sum_bits(parameter: Tensor) -> int:
    """The sum of log-factors, to the last bit; −1 if not all rows are counted yet."""
    debt = _owed(parameter)
    if debt is None:
        return 0
    received, total = debt
    if len(received) != len(parameter):
        return -1
    return struct.unpack("<q", struct.pack("<d", total))[0]


def _owed(parameter: Tensor) -> tuple[Tensor, float] | None:
    """What rows are still due; None if the sum has just begun."""
    debt = None if isinstance(parameter, DTensor) else owed(parameter)
    return debt if debt is not None and debt[1] else None


def saved_state(trained: Trained, rows: RowsOfAll) -> tuple[State, dict[str, Any]]:
    """Tensors, which are not copied, and numbers of this rank."""
    tensors: State = {}
    numbers: dict[str, Any] = {}
    parameters = trained.parameters()
    for name, parameter in parameters.items():
        sharded = trained.is_sharded(parameter)
        tensors[name] = rows(parameter) if sharded else parameter.detach()
        for key, value in state_of(trained, parameter).items():
            full = f"optimizer.{name}.{key}"
            if not isinstance(value, Tensor):
                numbers[full] = _plain(full, value)
            elif not sharded or not value.dim():
                tensors[full] = value.detach()
            elif rows.takes(value):
                tensors[full] = rows(value)
            else:
                raise _unknown_state(full, value)
        if (debt := _owed(parameter)) is not None:
            received, numbers[f"decay.{name}"] = debt
            tensors[f"decay.{name}"] = rows(received) if sharded else received
    tensors |= {name: buffer.detach() for name, buffer in trained.buffers().items()}
    tensors |= {name: extra_of(name, m) for name, m in trained.remembering().items()}
    names = {id(parameter): name for name, parameter in parameters.items()}
    options = {name: options_of(name, o, names) for name, o in trained.optimizers.items()}
    return tensors, {"numbers": numbers, "optimizers": options, "table": table_of(trained)}


def check_same(trained: Trained, tensors: State, description: dict[str, Any]) -> None:
    """Refuse ranks with states that do not fit together; every rank raises the same error."""
    shapes = [f"{name} {list(t.shape)} {t.dtype}" for name, t in tensors.items()]
    facts = {
        "parameters and optimiser states": "\n".join(shapes),
        "options of optimisers": str(description["optimizers"]),
        "numbers of steps": str(description["numbers"]),
    }
    refuse_differences(trained.head.ranks, facts)


def table_of(trained: Trained) -> dict[str, Any]:
    """What a table must have in common with another one."""
    head = trained.head
    return {
        "labels": list(head.placement.grown),
        "dim": head.dim,
        "dtype": as_text(head.weight.dtype),
        "bias": head.bias is not None,
    }


def state_of(trained: Trained, parameter: nn.Parameter) -> dict[str, Any]:
    """What an optimiser keeps for a parameter."""
    for optimizer in trained.optimizers.values():
        if parameter in optimizer.state:
            return optimizer.state[parameter]
    return {}


def _plain(name: str, value: Any) -> Any:
    if not is_plain(value):
        raise HeadtailError(
            f"`{name}` is a {type(value).__name__}, but only tensors and numbers are saved."
        )
    return value


def _unknown_state(name: str, value: Tensor) -> HeadtailError:
    return HeadtailError(
        f"`{name}` has the shape {list(value.shape)}, which is not one row per label, so it cannot "
        "be spread over other ranks. Use an optimiser of `headtail` for the head."
    )
