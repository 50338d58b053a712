"""e^x in float32 for loops that the compiler turns into vector instructions, which it does not do
with calls of a library.
"""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

import numpy as np
from numba import njit

LOG2_E = np.float32(1.4426950408889634)
LN_2_HIGH = np.float32(0.693359375)
"""The first digits of log 2, so few that a product with a whole number is exact."""
LN_2_LOW = np.float32(-2.12194440e-4)
"""The rest of log 2."""
ROUND = np.float32(1.5 * 2**23)
"""What is added to this has no digits left behind the point."""
LEAST = np.float32(-150)
"""e^x is 0 in float32 from here on."""
C2, C3, C4, C5, C6, C7 = (
    np.float32(c)
    for c in (
        0.5,
        0.166666671634,
        0.0416664853692,
        0.0083333607763,
        0.00139304355253,
        1.985276176e-4,
    )
)
"""e^r = 1 + r + C2 r² + … for |r| ≤ log(2) / 2, the least largest error."""
ONE = np.float32(1)
int32 = np.int32


@njit(inline="always")
@no_type_check
def exp(x):
    """e^x for x ≤ 0, wrong by at most 0.8 units in the last place; NaN stays NaN.

    x = n·log 2 + r, so that e^x = 2^n · e^r. 2^n is written as bits, in two factors, because it may
    be too small to have bits of its own.
    """
    x = LEAST if x < LEAST else x
    n = (x * LOG2_E + ROUND) - ROUND
    r = x - n * LN_2_HIGH
    r = r - n * LN_2_LOW
    p = ((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
    high = ONE + r
    low = r - (high - ONE)
    p = high + ((r * r) * p + low)
    k = int32(n)
    half = int32(k >> int32(1))
    first = int32(int32(half + int32(127)) << int32(23)).view(np.float32)
    second = int32(int32(k - half + int32(127)) << int32(23)).view(np.float32)
    return p * first * second
