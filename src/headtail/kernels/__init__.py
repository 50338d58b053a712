"""Compiled kernels, each the fast twin of a plain PyTorch function, and the choice between them.

`dispatch` is the only place that chooses: it returns the kernels for the tensors at hand, or None
where plain PyTorch does the work. `cpu` has kernels compiled by numba, `triton` those for GPUs, and
`gradient` the values that kernels return. Plain code, autograd and checks of arguments are in the
rooms that use the kernels. Kernels are imported where they are called, because their compilers are
slow to load and may be missing.
"""
