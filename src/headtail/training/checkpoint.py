"""Checkpoints: one safetensors file with all that a run needs to continue bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtail.device.host_memory import HostTensor, on_host
from headtail.distributed.checkpoint_parts import remembers
from headtail.errors import HeadtailError
from headtail.files.tensors import load_tensors
from headtail.rows.decay import forgive, owed, owes


def load(path: Path, only_facts: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a checkpoint."""
    return load_tensors(path, "a checkpoint", "Delete it to start that run again.", only_facts)


def training_state(
    model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that the next step depends on: weights, buffers, optimiser state, pending weight decay,
    random state.

    Weights are saved as they are: nothing is flushed, so that saving does not change later steps.
    """
    tensors = weights_of(model)
    numbers: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{name}.{key}"] = on_host(value)
            else:
                numbers[f"{name}.{key}"] = value
        if (debt := owed(parameter)) is not None:
            tensors[f"owed.{name}"], numbers[f"{name}.log_decay"] = debt
    return tensors | random_state(next(model.parameters()).device), {"optimiser": numbers}


def restore_training_state(
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
) -> None:
    """The inverse of `training_state`."""
    restore_weights(tensors, model)
    numbers = facts["optimiser"]
    for name, parameter in model.named_parameters():
        prefix = f"optimiser.{name}."
        state = {
            key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)
        }
        for key, value in state.items():
            present = optimiser.state[parameter].get(key)
            if isinstance(present, Tensor) and present.shape == value.shape:
                # In place: a captured graph reads tensors by address.
                on_host(present).copy_(value)
            elif isinstance(parameter, HostTensor) and value.dim():
                optimiser.state[parameter][key] = HostTensor.of(value, parameter.device)
            elif value.shape == parameter.shape:
                # In the parameter's memory layout, which optimisers over many tensors require.
                fresh = torch.empty_like(parameter, dtype=value.dtype)
                optimiser.state[parameter][key] = fresh.copy_(value)
            else:
                optimiser.state[parameter][key] = value.to(parameter.device)
        for key, value in numbers.items():
            if key.startswith(f"{name}.") and key != f"{name}.log_decay":
                optimiser.state[parameter][key[len(name) + 1 :]] = value
        if f"owed.{name}" in tensors:
            owes(parameter, tensors[f"owed.{name}"], numbers[f"{name}.log_decay"])
    restore_random_state(tensors)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators that training on this device draws from."""
    state = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random.cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(tensors: dict[str, Tensor]) -> None:
    """The inverse of `random_state`."""
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])


@torch.no_grad()
def restore_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Copy a checkpoint's weights and samplers' memories into a model of the same shape."""
    memories = {f"model.{name}.extra": module for name, module in remembering(model)}
    for name, value in weights_of(model).items():
        saved = tensors.get(name)
        # The memory of a sampler may have grown.
        if saved is None or (saved.shape != value.shape and name not in memories):
            shape = None if saved is None else list(saved.shape)
            raise HeadtailError(
                f"The checkpoint's `{name}` has shape {shape}, but the model's "
                f"{list(value.shape)}: is it of another run?"
            )
        if name not in memories:
            value.copy_(saved)
    for name, module in memories.items():
        module.set_extra_state(tensors[name])
    for parameter in model.parameters():
        forgive(parameter)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and samplers' memories by their names in a checkpoint."""
    extra = {f"{name}.extra": module.get_extra_state() for name, module in remembering(model)}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), **extra}
    return {f"model.{name}": on_host(tensor) for name, tensor in tensors.items()}


def copied_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of `weights_of`, which later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in weights_of(model).items()}


def remembering(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with more state than their buffers, such as a queue with its fill level."""
    return [(name, module) for name, module in model.named_modules() if remembers(module)]
