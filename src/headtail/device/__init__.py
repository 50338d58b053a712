"""The machine that runs the work: CUDA streams and graphs, timing, memory, versions, GPU sharing.

Nothing here knows about labels, models or training. Kernels are in `kernels`.
"""
