"""Kernels for GPUs, written in Triton; `dispatch` imports them. No sizes depend on values that are
on the GPU, so that every kernel can be captured in a CUDA graph.
"""
