"""Offsets: where the rows of a ragged array begin."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from headtail.errors import HeadtailError, check_ids

AT_ONCE = 1 << 22
"""Offsets that are compared at a time: memory-mapped ones may not fit into memory."""


def check_offsets(name: str, offsets: Int[Tensor, " n1"], end: int) -> None:
    """Refuse offsets, on a CPU, that do not rise from 0 to `end`.

    Args:
        name: of the argument.
        offsets: where each row begins, and where the last one ends.
        end: the number of values.
    """
    check_ids(name, offsets, None)
    ends = offsets.dim() == 1 and len(offsets) > 0 and (int(offsets[0]), int(offsets[-1]))
    if ends == (0, end) and _rise(offsets):
        return
    raise HeadtailError(
        f"`{name}` must rise from 0 to the number of values ({end:,}), but got "
        f"{offsets[:8].tolist()}…. Write one offset for each row, and the number of values last."
    )


def _rise(offsets: Int[Tensor, " n1"]) -> bool:
    """Whether none is smaller than the one before it."""
    for start in range(0, len(offsets) - 1, AT_ONCE):
        block = offsets[start : start + AT_ONCE + 1]
        if bool((block[1:] < block[:-1]).any()):
            return False
    return True
