"""Settings of a file that is not trusted cannot allocate more than the file accounts for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

TIMES = 16
"""Bytes that a model may take while it is built, for each byte of its file: tables are saved in 2
bytes a number and computed in 8, and some are made in several steps.
"""
ANY = 1 << 24
"""Bytes that any model may take."""
FACTORIES = {
    *(torch.zeros, torch.ones, torch.empty, torch.full, torch.eye),
    *(torch.arange, torch.linspace, torch.rand, torch.randn, torch.randint, torch.randperm),
}
"""What makes tensors from numbers alone."""


class BoundedAllocations(TorchFunctionMode):
    """Within this context, sizes of new tensors add up to what the tensors of a file account for.

    Whatever exceeds it is refused before it is allocated, with a `MemoryError`.

    Args:
        tensors: of the file.

    >>> with BoundedAllocations([torch.zeros(3)]):
    ...     torch.zeros(10**12)
    Traceback (most recent call last):
    MemoryError: they ask for 4,000,000,000,000 bytes, but its tensors have 12
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.held = sum(tensor.nbytes for tensor in tensors)
        self.taken = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Ask on a device without memory first."""
        kwargs = kwargs or {}
        if func in FACTORIES:
            unseen = {name: value for name, value in kwargs.items() if name != "generator"}
            self.taken += func(*args, **{**unseen, "device": "meta"}).nbytes
            if self.taken > ANY + TIMES * self.held:
                raise MemoryError(
                    f"they ask for {self.taken:,} bytes, but its tensors have {self.held:,}"
                )
        return func(*args, **kwargs)
