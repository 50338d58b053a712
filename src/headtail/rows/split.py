"""SplitOptimizer: several optimisers, each for its own parameters, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from headtail.errors import HeadtailError, check_kind
from headtail.rows.row_optimizer import RowOptimizer
from headtail.rows.scaling import may_step, meets_scaler

KNOW_ROWS = (
    RowOptimizer,
    torch.optim.Adagrad,
    torch.optim.SGD,
    torch.optim.SparseAdam,
)
"""Optimisers that take row-sparse gradients."""


class SplitOptimizer(torch.optim.Optimizer):
    """Several optimisers as one, such as a row optimiser for a label table and AdamW for the rest.

    It is an ordinary optimiser for schedulers, `GradScaler` and trainers: `param_groups` holds the
    groups of all of them, in this order and as the same objects, and `state_dict` has torch's form.

    Args:
        *optimizers: which share no parameter.

    >>> from headtail import RowAdagrad
    >>> table, layer = torch.nn.Embedding(9, 2, sparse=True), torch.nn.Linear(2, 1)
    >>> optimizer = SplitOptimizer(
    ...     RowAdagrad(table.parameters(), lr=0.1), torch.optim.AdamW(layer.parameters(), lr=1e-3)
    ... )
    >>> layer(table(torch.tensor([1, 4]))).sum().backward()
    >>> optimizer.step()
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.1, 0.001]
    """

    optimizers: tuple[torch.optim.Optimizer, ...]

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        example = "SplitOptimizer(RowAdagrad(head.parameters(), lr=0.1), AdamW(rest, lr=1e-4))"
        if not optimizers:
            raise HeadtailError(f"There is no optimiser to combine. Write `{example}`.")
        for optimizer in optimizers:
            check_kind("optimizers", optimizer, torch.optim.Optimizer, example)
        _refuse_shared(optimizers)
        defaults: dict[str, Any] = {}
        for optimizer in reversed(optimizers):
            defaults |= optimizer.defaults
        # As if unpickled: `super().__init__` would make groups and a state of its own.
        self.__setstate__({"optimizers": optimizers, "defaults": defaults})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The groups of all optimisers; those of each one are changed in place."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The state of every parameter, kept by the optimiser that it belongs to."""
        return _States(self.optimizers)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `GradScaler` passes itself to `step`, and leaves it to that what it does."""
        return meets_scaler(self)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], float] | None = None, *, grad_scaler: Any = None
    ) -> float | None:
        """Take a step of every optimiser; the closure is called once."""
        if not may_step(self, grad_scaler):
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            check_knows_rows(optimizer)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def flush(self) -> None:
        """Apply all pending weight decay to all rows."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, RowOptimizer | SplitOptimizer):
                optimizer.flush()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: only you know which optimiser the parameters are for."""
        raise HeadtailError(
            "A `SplitOptimizer` has no groups of its own. Write "
            "`optimizer.optimizers[0].add_param_group(…)`."
        )

    def state_dict(self) -> dict[str, Any]:
        """As torch's; parameters are numbered from the first optimiser to the last."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        states: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        start = 0
        for optimizer in self.optimizers:
            part = optimizer.state_dict()
            states |= {start + index: state for index, state in part["state"].items()}
            groups += _renumbered(part["param_groups"], start)
            start += _num_parameters(optimizer.param_groups)
        whole: dict[str, Any] = {"state": states, "param_groups": groups}
        for after in self._optimizer_state_dict_post_hooks.values():
            whole = after(self, whole) or whole
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's. Nothing is changed where the number of groups or parameters differs."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        saved = [len(group["params"]) for group in state_dict["param_groups"]]
        own = [len(group["params"]) for group in self.param_groups]
        if saved != own:
            raise HeadtailError(
                f"The saved optimiser has {saved} parameters in its groups, but this one {own}. "
                "Combine the same optimisers in the same order."
            )
        groups = iter(state_dict["param_groups"])
        start = 0
        for optimizer in self.optimizers:
            end = start + _num_parameters(optimizer.param_groups)
            part = [next(groups) for _ in optimizer.param_groups]
            states = state_dict["state"].items()
            mine = {index - start: state for index, state in states if start <= index < end}
            optimizer.load_state_dict({"state": mine, "param_groups": _renumbered(part, -start)})
            start = end
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy."""
        return {"optimizers": self.optimizers, "defaults": self.defaults}


class _States(Mapping[Tensor, Any]):
    """The states of several optimisers."""

    def __init__(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, parameter: Tensor) -> Any:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if any(parameter is p for p in group["params"]):
                    return optimizer.state[parameter]
        raise KeyError(parameter)

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in optimizer.state for optimizer in self._optimizers)

    def __iter__(self) -> Iterator[Tensor]:
        for optimizer in self._optimizers:
            yield from optimizer.state

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self._optimizers)


def check_knows_rows(optimizer: torch.optim.Optimizer, tables: tuple[Tensor, ...] = ()) -> None:
    """Refuse an optimiser that does not know row-sparse gradients but has to take some.

    Args:
        optimizer: also one that is combined of others.
        tables: parameters that get row-sparse gradients, where that is known before they have one.
    """
    if isinstance(optimizer, SplitOptimizer):
        for part in optimizer.optimizers:
            check_knows_rows(part, tables)
        return
    if isinstance(optimizer, KNOW_ROWS):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            sparse = p.grad is not None and p.grad.is_sparse
            if sparse or any(p is table for table in tables):
                raise HeadtailError(
                    f"`{type(optimizer).__name__}` does not know row-sparse gradients, which a "
                    f"table of shape {list(p.shape)} gets. Give it to `RowAdagrad`, `RowAdam` or "
                    "`RowSGD`, and combine both with `SplitOptimizer`."
                )


def _refuse_shared(optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
    seen: set[int] = set()
    for optimizer in optimizers:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if own & seen:
            raise HeadtailError(
                "Two of the `optimizers` have the same parameter. Leave it out of one of them."
            )
        seen |= own


def _num_parameters(groups: list[dict[str, Any]]) -> int:
    return sum(len(group["params"]) for group in groups)


def _renumbered(groups: list[dict[str, Any]], shift: int) -> list[dict[str, Any]]:
    """Groups of a state dict whose parameters have other numbers."""
    return [{**group, "params": [index + shift for index in group["params"]]} for group in groups]
