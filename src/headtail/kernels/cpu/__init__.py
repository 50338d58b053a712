"""Kernels for float32 tensors on a CPU, compiled by numba; `dispatch` imports them."""
