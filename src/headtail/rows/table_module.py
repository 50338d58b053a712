"""Modules with tables that may lie in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headtail.device.host_memory import HostTensor
from headtail.rows.decay import flush

Placement = Literal["device", "host"]
PLACEMENTS: tuple[Placement, ...] = ("device", "host")


class TableModule(nn.Module):
    """A module whose tables in host memory stay there.

    `.to()` moves everything else. `state_dict` holds the host's own tensors, and `load_state_dict`
    writes to them, so that no second copy is made and a GPU's memory plays no part.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        tables = self._host_tables()
        for table in tables.values():
            table.follow(fn)
        with self._replaced(dict.fromkeys(tables)):
            return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        there = {} if keep_vars else self._on_host()
        with self._replaced(there):
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        flush(self)  # hooks that do so would see the parameters of the CPU, which owe nothing
        there = self._on_host()
        if there:  # `assign=True` would replace the table by whatever was loaded
            local_metadata = {**local_metadata, "assign_to_params_buffers": False}
        with self._replaced(there):
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _host_tables(self) -> dict[str, HostTensor]:
        own = self._parameters.items()
        return {name: table for name, table in own if isinstance(table, HostTensor)}

    def _on_host(self) -> dict[str, nn.Parameter | None]:
        """Tables in host memory as parameters of the CPU."""
        tables = self._host_tables().items()
        return {name: nn.Parameter(t.settle(), t.requires_grad) for name, t in tables}

    @contextmanager
    def _replaced(self, others: dict[str, nn.Parameter | None]) -> Iterator[None]:
        """Inside the block, the module has these parameters instead of its own."""
        own = {name: self._parameters[name] for name in others}
        self._parameters.update(others)
        try:
            yield
        finally:
            self._parameters.update(own)


def new_table(
    shape: tuple[int, int],
    placement: str,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Parameter:
    """A table whose numbers are yet to be set."""
    if placement == "host":
        return HostTensor.empty(shape, dtype or torch.get_default_dtype(), device)
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
