"""How numba's kernels are kept on disk, and how many threads run them."""

from __future__ import annotations

import os

import torch

from headtail.files.cache_folder import cache_folder


def keep_compiled() -> None:
    """Keep compiled code in headtail's cache folder, so that a machine compiles once and not in
    every process. A folder that the user has chosen for numba takes precedence. Call it before
    compiling.
    """
    from numba import config

    if not os.environ.get("NUMBA_CACHE_DIR"):
        folder = str(cache_folder() / "numba")
        config.CACHE_DIR = folder  # pyright: ignore[reportAttributeAccessIssue]


def uses_threads(operations: int, worthwhile: int) -> bool:
    """Whether a kernel with so many operations should run on torch's number of threads, which is
    then set; False for one thread.

    Threads that wait for work take cores from others: where one is enough, none are started.
    """
    if operations < worthwhile or torch.get_num_threads() == 1:
        return False
    from numba import config, set_num_threads

    most: int = config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    threads = min(torch.get_num_threads(), most)
    if threads == 1:
        return False
    set_num_threads(threads)
    return True
