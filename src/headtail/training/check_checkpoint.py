"""What a checkpoint says about a run, checked before any of it is restored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from headtail.encoders import Model
from headtail.training.check_saved import Saved, is_number
from headtail.training.state import State

STATE = {"sum", "exp_avg", "exp_avg_sq", "momentum_buffer", "step"}
"""What optimisers remember of a parameter."""


def check_optimiser(saved: Saved, model: Model, optimiser: torch.optim.Optimizer) -> None:
    """Refuse optimiser state that does not fit the parameters: kernels index it by their rows."""
    numbers = saved.fact("optimiser", dict)
    parameters = dict(model.named_parameters())
    per_row = bool(optimiser.param_groups[0].get("per_row"))
    for key in saved.tensors:
        kind, _, rest = key.partition(".")
        if kind == "optimiser":
            name, _, what = rest.rpartition(".")
            if name not in parameters or what not in STATE:
                saved.refuse(f"its `{key}` belongs to another model")
            shape = _shape(parameters[name], what, per_row)
            saved.tensor(key, shape, (torch.float32, torch.float64))
        elif kind == "owed":
            if rest not in parameters or not is_number(numbers.get(f"{rest}.log_decay")):
                saved.refuse(f"its `{key}` belongs to another model")
            owed = saved.tensor(key, (len(parameters[rest]),), (torch.float64,))
            saved.check_finite(key, owed)
        elif kind not in ("model", "random"):
            saved.refuse(f"it holds `{key}`, which no checkpoint has")
    for key, number in numbers.items():
        name, _, what = key.rpartition(".")
        whole = what == "step" and type(number) is int and 0 <= number < 2**53
        if name not in parameters or not (whole or (what == "log_decay" and is_number(number))):
            saved.refuse(f"its optimiser has `{key[:60]}`, which makes no sense")


def _shape(parameter: Tensor, what: str, per_row: bool) -> tuple[int, ...]:
    if what == "step":
        return ()
    if what == "sum" and per_row and parameter.dim() == 2:
        return (len(parameter), 1)
    return tuple(parameter.shape)


def check_random(saved: Saved) -> None:
    """Refuse what is not the state of torch's generators."""
    state = saved.tensor("random.cpu", tuple(torch.get_rng_state().shape), (torch.uint8,))
    with saved.explained("`random.cpu`"):
        torch.Generator().set_state(state)
    if "random.cuda" in saved.tensors:
        saved.tensor("random.cuda", (16,), (torch.uint8,))


def checked_state(saved: Saved, epochs: int, steps: int) -> State:
    """How far the run has come, within its epochs and its steps per epoch."""
    state: dict[str, Any] = saved.fact("state", dict)
    if state.keys() != {field.name for field in fields(State)}:
        saved.refuse("its `state` has other fields than that of a run")
    most = {"epoch": epochs, "step": steps, "best_epoch": epochs}
    for name, high in most.items():
        if type(state[name]) is not int or not 0 <= state[name] <= high:
            saved.refuse(f"its `{name}` is not a whole number from 0 to {high:,}")
    first = state["first_loss"]
    numbers = is_number(state["loss_sum"]) and (first is None or is_number(first))
    if not numbers or not is_number(state["best"], finite=False):
        saved.refuse("its losses are not numbers")
    if type(state["finished"]) is not bool:
        saved.refuse("its `finished` is neither true nor false")
    curve = state["curve"]
    if not isinstance(curve, list) or not all(map(_is_point, curve)):
        saved.refuse("its learning curve is not a list of epoch, metric and value")
    return State(**{**state, "curve": [tuple(point) for point in curve]})


def _is_point(point: Any) -> bool:
    if not isinstance(point, list) or len(point) != 3:
        return False
    epoch, metric, value = point
    number = is_number(value, finite=False) or isinstance(value, float)
    return type(epoch) is int and isinstance(metric, str) and number
