"""The collectives that a block of code calls, and the bytes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from headtail.collectives.ranks import GATHER_INTO, SUM_INTO

Call = tuple[str, int]
"""The collective, and its bytes as `Message.size` counts them."""
OTHERS = (
    "broadcast",
    "all_to_all",
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
    ranks = dist.get_world_size()

    def counting(name: str, size: Callable[..., int], kind: str | None = None) -> Any:
        function = getattr(dist, name)

        def call(*args: Any, **options: Any) -> Any:
            calls.append((kind or name, size(*args)))
            return function(*args, **options)

        return mock.patch.object(dist, name, call)

    def uncounted(name: str) -> Any:
        return mock.patch.object(dist, name, side_effect=AssertionError(f"{name} is not counted"))

    patches = [
        counting("all_gather", lambda every, own: own.nbytes),
        counting("all_reduce", lambda total, *_: total.nbytes),
        counting("reduce_scatter", lambda own, parts: own.nbytes),
        counting(GATHER_INTO, lambda every, own: own.nbytes, "all_gather"),
        counting(SUM_INTO, lambda own, every: own.nbytes, "reduce_scatter"),
        counting("all_to_all_single", lambda _, parts: parts.nbytes // ranks, "all_to_all"),
        *(uncounted(name) for name in OTHERS),
    ]
    for patch in patches:
        patch.start()
    try:
        yield calls
    finally:
        for patch in patches:
            patch.stop()
