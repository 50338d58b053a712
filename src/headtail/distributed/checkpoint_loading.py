"""Where the state that a checkpoint holds is loaded to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtail.distributed.checkpoint_contents import Contents, as_text
from headtail.distributed.checkpoint_grown import Grown
from headtail.distributed.checkpoint_options import checked_groups, set_options
from headtail.distributed.checkpoint_parts import RowsOfAll, Trained, extra_of
from headtail.distributed.checkpoint_state import state_of
from headtail.distributed.moving import first_value
from headtail.errors import HeadtailError
from headtail.rows.decay import forgive, owes


class Loading:
    """Tensors to load into, and what to do once they are loaded.

    Weights are loaded where they are, and so is the state of optimisers that have it already.

    Args:
        trained: what to load.
        rows: describes rows of the table; None where they are not those of the checkpoint.
        contents: of the checkpoint.

    Attributes:
        tensors: by their names in the checkpoint.
        by_label: where rows are not those of the checkpoint, rows by their names in it, and what
            those of new labels begin with.
    """

    def __init__(self, trained: Trained, rows: RowsOfAll | None, contents: Contents) -> None:
        self.trained = trained
        self.rows = rows
        self.contents = contents
        self.by_label: dict[str, tuple[Tensor, float]] = {}
        self.numbers: dict[str, Any] = contents.description["numbers"]
        self.tensors: dict[str, Tensor] = {}
        self._after: list[Callable[[], None]] = []
        parameters = trained.parameters()
        held = self._add_optimisers({id(p): name for name, p in parameters.items()})
        for name, parameter in parameters.items():
            self._put(name, parameter, parameter)
            self._add_decay(name, parameter)
            if id(parameter) in held:
                self._add_state(name, parameter)
        self.tensors |= {name: buffer.detach() for name, buffer in trained.buffers().items()}
        for name, module in trained.remembering().items():
            extra = _like(contents, name, extra_of(name, module))
            self.tensors[name] = extra
            self._after.append(lambda m=module, e=extra: m.set_extra_state(e))

    def finish(self) -> None:
        """Hand over what is not loaded to its place."""
        for do in self._after:
            do()

    def _add_optimisers(self, names: dict[int, str]) -> set[int]:
        """Check them, and return which parameters they train."""
        held = set()
        saved = self.contents.description["optimizers"]
        for name, optimizer in self.trained.optimizers.items():
            groups = checked_groups(name, optimizer, names, saved)
            self._after.append(lambda o=optimizer, g=groups: set_options(o, g))
            held |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        return held

    def _add_decay(self, name: str, parameter: nn.Parameter) -> None:
        """Weight decay that rows are still due."""
        total = self.numbers.get(f"decay.{name}")
        if total is None:
            self._after.append(lambda: forgive(parameter))
            return
        received = torch.empty(len(parameter), dtype=torch.float64, device=parameter.device)
        self._put(f"decay.{name}", parameter, received, total)  # new rows are due nothing
        self._after.append(lambda: owes(parameter, received, total))

    def _add_state(self, name: str, parameter: nn.Parameter) -> None:
        prefix = f"optimizer.{name}."
        state = _state_to_load(self.trained, prefix, parameter, self.contents)
        for key, value in state.items():
            first = first_value(self.trained.optimizers.values(), parameter, key)
            self._put(prefix + key, parameter, value, first)
        numbers = {
            full.removeprefix(prefix): value
            for full, value in self.numbers.items()
            if full.startswith(prefix)
        }
        whole = state | numbers
        self._after.append(lambda: _put_state(self.trained, parameter, whole))

    def _put(self, name: str, parameter: nn.Parameter, value: Tensor, new: float = 0.0) -> None:
        """Load a tensor to here; rows of new labels begin with a number."""
        if not self.trained.is_sharded(parameter) or not value.dim():
            self.tensors[name] = value.detach()
        elif self.rows is None:
            self.by_label[name] = (value.detach(), new)
        else:
            self.tensors[name] = self.rows(value)


def check_fits(path: Path, loading: Loading, grown: Grown | None) -> None:
    """Refuse a checkpoint without a tensor, or with one of another shape or type."""
    contents = loading.contents
    wanted = {name: (tuple(t.shape), t.dtype) for name, t in loading.tensors.items()}
    if grown is not None:
        own = loading.by_label.items()
        wanted |= {name: (grown.saved_shape(rows), rows.dtype) for name, (rows, _) in own}
    for name, (shape, dtype) in wanted.items():
        saved = contents.tensors.get(name)
        if saved is None:
            raise HeadtailError(
                f"`{path}` has no `{name}`: it is a checkpoint of another model or optimiser. Load "
                "it into those that it was saved from."
            )
        if saved.whole.shape != shape or saved.whole.dtype != dtype:
            raise HeadtailError(
                f"`{path}` has `{name}` as {as_text(saved.whole.dtype)} of shape "
                f"{list(saved.whole.shape)}, but it should be {as_text(dtype)} of shape "
                f"{list(shape)}: it is a checkpoint of another model or optimiser."
            )


def _state_to_load(
    trained: Trained, prefix: str, parameter: nn.Parameter, contents: Contents
) -> dict[str, Tensor]:
    """Tensors for the state of a parameter: those that are there, or new ones."""
    present = state_of(trained, parameter)
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


def _like(contents: Contents, name: str, present: Tensor) -> Tensor:
    """A tensor to load a memory into, which may have grown."""
    saved = contents.tensors.get(name)
    if saved is None or len(saved.whole.shape) != present.dim():
        return present.clone()
    return torch.empty(saved.whole.shape, dtype=saved.whole.dtype, device=present.device)
