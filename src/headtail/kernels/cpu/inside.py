"""Whether indices are inside a table: kernels look before they read."""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

from numba import njit

from headtail.kernels.compiled import keep_compiled

keep_compiled()


@njit(cache=True)
@no_type_check
def refuse_outside(ids, size):
    """Raise IndexError unless all ids are from 0 to size − 1; a loop that is vectorised."""
    outside = 0
    for i in range(len(ids)):
        outside += (ids[i] < 0) | (ids[i] >= size)
    if outside:
        raise IndexError
