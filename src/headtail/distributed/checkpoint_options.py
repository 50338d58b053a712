"""The options of optimisers that change in training, such as learning rates, as JSON and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from headtail.errors import HeadtailError

_PLAIN = (bool, int, float, str, type(None))


def options_of(name: str, optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """The kind of an optimiser, its parameters, and options that may change in training."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: _number(value) for key, value in group.items() if key != "params"}
        options = {key: value for key, value in options.items() if is_plain(value)}
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


def checked_groups(
    name: str, optimizer: Optimizer, names: dict[int, str], saved: dict[str, Any]
) -> list[dict[str, Any]]:
    """The options that were saved for each group; another optimiser's are refused."""
    if name not in saved:
        raise HeadtailError(
            f"The checkpoint was saved without `{name}`. Leave it out, or load one that has it."
        )
    own = options_of(name, optimizer, names)
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


def set_options(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Give an optimiser the options that were saved."""
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        for key, value in saved.items():
            if isinstance(now := group.get(key), Tensor):
                now.fill_(value)  # in place: a captured graph reads it by address
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def is_plain(value: Any) -> bool:
    """Whether JSON has such values: numbers, texts and lists of them."""
    items = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(item, _PLAIN) for item in items)
