"""The collectives that a block of code calls, and the bytes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

Call = tuple[str, int]
"""The collective, and its bytes as `Message.size` counts them."""
OTHERS = (
    "broadcast",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "reduce_scatter_tensor",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
    "all_gather_object",
    "broadcast_object_list",
)
"""What a step must not call: it would not be counted."""


@contextmanager
def collectives() -> Iterator[list[Call]]:
    """Collect (collective, bytes) of all calls, in their order."""
    calls: list[Call] = []

    def counting(name: str, size: Callable[..., int]) -> Any:
        function = getattr(dist, name)

        def call(*args: Any, **options: Any) -> Any:
            calls.append((name, size(*args)))
            return function(*args, **options)

        return mock.patch.object(dist, name, call)

    def uncounted(name: str) -> Any:
        return mock.patch.object(dist, name, side_effect=AssertionError(f"{name} is not counted"))

    patches = [
        counting("all_gather", lambda every, own: own.nbytes),
        counting("all_reduce", lambda total, *_: total.nbytes),
        counting("reduce_scatter", lambda own, parts: own.nbytes),
        *(uncounted(name) for name in OTHERS),
    ]
    for patch in patches:
        patch.start()
    try:
        yield calls
    finally:
        for patch in patches:
            patch.stop()
