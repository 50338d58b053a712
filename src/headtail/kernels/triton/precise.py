"""Elementary functions in Triton that are right to the last digits."""

# Triton's functions take and return other things than their signatures say.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """log(1 + x) for x ≥ 0. Where x is small, 1 + x has lost digits: the quotient repairs it."""
    u = 1 + x
    return tl.where(u == 1, x, tl.log(u) * (x / (u - 1)))


@triton.jit
def exp(x):
    """e^x as 2^n · e^r, because the hardware's 2^(x·log2 e) rounds a large exponent."""
    n = tl.minimum(tl.maximum(tl.floor(x * 1.4426950408889634 + 0.5), -200.0), 200.0)
    # log 2 in two parts: n times the first is exact
    r = (x - n * 0.693145751953125) - n * 1.4286068203094172e-06
    return tl.exp(r) * tl.exp2(n)
