"""Work on a whole table, some rows at a time: what is computed on the way is never as large as the
table.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

PART = 2**28
"""Bytes of a table that are worked on at a time, wherever all of it is needed."""


def parts(table: Tensor) -> Iterator[slice]:
    """All rows, some at a time.

    >>> import torch
    >>> list(parts(torch.zeros(3, 2)))
    [slice(0, 3, None)]
    """
    rows = max(1, PART * len(table) // max(1, table.nbytes))
    for start in range(0, len(table), rows):
        yield slice(start, min(start + rows, len(table)))


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite; the host waits for the answer.

    >>> import torch
    >>> all_finite(torch.tensor([1.0, torch.inf])), all_finite(torch.tensor(2.0))
    (False, True)
    """
    # `isfinite` makes the absolute values and two masks: 1.75 times a float32 table.
    rows = tensor.detach().reshape(-1, 1) if tensor.dim() == 0 else tensor.detach()
    return all(bool(rows[part].isfinite().all()) for part in parts(rows))
