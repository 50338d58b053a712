"""All that the next step of sharded training depends on, as tensors and numbers, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from headtail.distributed.agree import refuse_differences
from headtail.distributed.checkpoint_contents import Contents, as_text
from headtail.distributed.checkpoint_parts import RowsOfAll, Trained, extra_of
from headtail.errors import HeadtailError
from headtail.rows.decay import catch_up, forgive, owed, owes

State = dict[str, Tensor]
_PLAIN = (bool, int, float, str, type(None))


def settle(trained: Trained) -> None:
    """Apply pending weight decay where ranks count it differently; usually they do not.

    Decay that is still due is saved as it is, so that saving changes nothing that comes after. A
    row that moves to another rank needs that rank's sum to be the same. Every rank must call it.
    """
    parameters = list(trained.parameters().values())
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
    return (
        -1 if len(received) != len(parameter) else struct.unpack("<q", struct.pack("<d", total))[0]
    )


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
        for key, value in _state_of(trained, parameter).items():
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
    options = {name: _options(name, o, names) for name, o in trained.optimizers.items()}
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


def loading_state(
    trained: Trained, rows: RowsOfAll, contents: Contents
) -> tuple[State, Callable[[], None]]:
    """Tensors to load into, and what to call once they are loaded.

    Weights are loaded where they are, and so is the state of optimisers that have it already.
    """
    described = contents.description
    numbers = described["numbers"]
    tensors: State = {}
    after: list[Callable[[], None]] = []
    optimisers = trained.optimizers.items()
    parameters = trained.parameters()
    names = {id(parameter): name for name, parameter in parameters.items()}
    for name, optimizer in optimisers:
        groups = _checked_groups(name, optimizer, names, described["optimizers"])
        after.append(lambda o=optimizer, g=groups: _set_options(o, g))
    held = {id(p) for _, o in optimisers for group in o.param_groups for p in group["params"]}
    for name, parameter in parameters.items():
        sharded = trained.is_sharded(parameter)
        tensors[name] = rows(parameter) if sharded else parameter.detach()
        if id(parameter) in held:
            state = _state_to_load(trained, name, parameter, contents)
            for key, value in state.items():
                split = sharded and value.dim() > 0
                tensors[f"optimizer.{name}.{key}"] = rows(value) if split else value
            whole = state | _numbers_of(f"optimizer.{name}.", numbers)
            after.append(lambda p=parameter, s=whole: _put_state(trained, p, s))
        if f"decay.{name}" in numbers:
            received = torch.empty(len(parameter), dtype=torch.float64, device=parameter.device)
            tensors[f"decay.{name}"] = rows(received) if sharded else received
            total = numbers[f"decay.{name}"]
            after.append(lambda p=parameter, r=received, t=total: owes(p, r, t))
        else:
            after.append(lambda p=parameter: forgive(p))
    tensors |= {name: buffer.detach() for name, buffer in trained.buffers().items()}
    for name, module in trained.remembering().items():
        extra = _like(contents, name, extra_of(name, module))
        tensors[name] = extra
        after.append(lambda m=module, e=extra: m.set_extra_state(e))
    return tensors, lambda: [do() for do in after] and None


def check_fits(path: Any, tensors: State, contents: Contents) -> None:
    """Refuse a checkpoint without a tensor, or with one of another shape or type."""
    for name, tensor in tensors.items():
        saved = contents.tensors.get(name)
        if saved is None:
            raise HeadtailError(
                f"`{path}` has no `{name}`: it is a checkpoint of another model or optimiser. Load "
                "it into those that it was saved from."
            )
        if saved.whole.shape != tuple(tensor.shape) or saved.whole.dtype != tensor.dtype:
            raise HeadtailError(
                f"`{path}` has `{name}` as {as_text(saved.whole.dtype)} of shape "
                f"{list(saved.whole.shape)}, but it should be {as_text(tensor.dtype)} of shape "
                f"{list(tensor.shape)}: it is a checkpoint of another model or optimiser."
            )


def _state_of(trained: Trained, parameter: nn.Parameter) -> dict[str, Any]:
    for optimizer in trained.optimizers.values():
        if parameter in optimizer.state:
            return optimizer.state[parameter]
    return {}


def _state_to_load(
    trained: Trained, name: str, parameter: nn.Parameter, contents: Contents
) -> dict[str, Tensor]:
    """Tensors for the state of a parameter: those that are there, or new ones."""
    prefix = f"optimizer.{name}."
    present = _state_of(trained, parameter)
    state = {}
    for full, saved in contents.tensors.items():
        if not full.startswith(prefix):
            continue
        key = full.removeprefix(prefix)
        shape = saved.whole.shape
        if trained.is_sharded(parameter) and shape:
            shape = (len(parameter), *shape[1:])
        now = present.get(key)
        if isinstance(now, Tensor) and tuple(now.shape) == shape and now.dtype == saved.whole.dtype:
            state[key] = now.detach()
        elif tuple(parameter.shape) == shape:  # in the memory layout of the parameter
            state[key] = torch.empty_like(parameter, dtype=saved.whole.dtype).detach()
        else:
            place = parameter.device if shape else _place_of_numbers(trained, parameter)
            state[key] = torch.empty(shape, dtype=saved.whole.dtype, device=place)
    return state


def _place_of_numbers(trained: Trained, parameter: nn.Parameter) -> torch.device:
    """Where optimisers of torch keep their count of steps."""
    for optimizer in trained.optimizers.values():
        for group in optimizer.param_groups:
            beside = group.get("capturable") or group.get("fused")
            if beside and any(p is parameter for p in group["params"]):
                return parameter.device
    return torch.device("cpu")


def _put_state(trained: Trained, parameter: nn.Parameter, state: dict[str, Any]) -> None:
    for optimizer in trained.optimizers.values():
        if any(p is parameter for group in optimizer.param_groups for p in group["params"]):
            optimizer.state.pop(parameter, None)
            if state:
                optimizer.state[parameter] = state


def _numbers_of(prefix: str, numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value
        for name, value in numbers.items()
        if name.startswith(prefix)
    }


def _like(contents: Contents, name: str, present: Tensor) -> Tensor:
    """A tensor to load a memory into, which may have grown."""
    saved = contents.tensors.get(name)
    if saved is None or len(saved.whole.shape) != present.dim():
        return present.clone()
    return torch.empty(saved.whole.shape, dtype=saved.whole.dtype, device=present.device)


def _options(name: str, optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """The kind of an optimiser, its parameters, and options that may change in training."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: _number(value) for key, value in group.items() if key != "params"}
        options = {key: value for key, value in options.items() if _is_plain(value)}
        groups.append({"parameters": _names(name, group, names), "options": options})
    return {"kind": type(optimizer).__name__, "groups": groups}


def _names(name: str, group: dict[str, Any], names: dict[int, str]) -> list[str]:
    missing = [p for p in group["params"] if id(p) not in names]
    if missing:
        raise HeadtailError(
            f"`{name}` has a parameter of shape {list(missing[0].shape)} that neither `head` nor "
            "`encoder` has. Pass the modules that it trains."
        )
    return [names[id(p)] for p in group["params"]]


def _checked_groups(
    name: str, optimizer: Optimizer, names: dict[int, str], saved: dict[str, Any]
) -> list[dict[str, Any]]:
    if name not in saved:
        raise HeadtailError(
            f"The checkpoint was saved without `{name}`. Leave it out, or load one that has it."
        )
    own = _options(name, optimizer, names)
    if own["kind"] != saved[name]["kind"]:
        raise HeadtailError(
            f"The checkpoint has the state of `{saved[name]['kind']}`, but `{name}` is "
            f"`{own['kind']}`. Load it into the kind of optimiser that it was saved from."
        )
    parameters = [[group["parameters"] for group in o["groups"]] for o in (own, saved[name])]
    if parameters[0] != parameters[1]:
        raise HeadtailError(
            f"`{name}` trains other parameters than the one that was saved. Make it as it was made."
        )
    return [group["options"] for group in saved[name]["groups"]]


def _set_options(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        for key, value in saved.items():
            if isinstance(now := group.get(key), Tensor):
                now.fill_(value)  # in place: a captured graph reads it by address
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(item, _PLAIN) for item in items)


def _plain(name: str, value: Any) -> Any:
    if not _is_plain(value):
        raise HeadtailError(
            f"`{name}` is a {type(value).__name__}, but only tensors and numbers are saved."
        )
    return value


def _unknown_state(name: str, value: Tensor) -> HeadtailError:
    return HeadtailError(
        f"`{name}` has the shape {list(value.shape)}, which is not one row per label, so it cannot "
        "be spread over other ranks. Use an optimiser of `headtail` for the head."
    )
