"""e^x of the CPU kernels."""

import numpy as np
import pytest

pytest.importorskip("numba")

from headtail.kernels.cpu.loss import _exp


def test_the_exponential_is_right_to_the_last_digit_also_where_numbers_get_tiny():
    x = -np.random.default_rng(0).uniform(0, 104, 100_000).astype(np.float32)
    found = x.copy()
    _exp(found, np.float32(0))
    exact = np.exp(x.astype(np.float64))
    last_digit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) <= 0.8 * last_digit).all()


def test_the_exponential_of_nothing_is_0_and_that_of_nan_nan():
    x = np.array([-np.inf, -1e30, 0, np.nan] * 8, np.float32)
    _exp(x, np.float32(0))
    np.testing.assert_array_equal(x, [0, 0, 1, np.nan] * 8)
