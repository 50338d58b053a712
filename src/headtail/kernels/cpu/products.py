"""Products of two vectors on a CPU, by numba."""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
from numba import njit

from headtail.kernels.compiled import keep_compiled

keep_compiled()


# a sum of products in any order can use all vector lanes
@njit(cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def product(x, y):
    """x · y."""
    total = np.float32(0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total
