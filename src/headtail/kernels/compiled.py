"""How numba's kernels are kept on disk, and how many threads run them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import torch

from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder, own_folder


def keep_compiled() -> None:
    """Keep compiled code in headtail's cache folder, so that a machine compiles once and not in
    every process. A folder that the user has chosen for numba takes precedence. Call it before
    compiling.

    numba reads its files with pickle, so whoever can write to them can run code. Where that is not
    the user alone, compiled code is kept for this process only, with a warning.
    """
    from numba import config

    config.CACHE_DIR = str(  # pyright: ignore[reportAttributeAccessIssue]
        _folder_of_kernels(os.environ.get("NUMBA_CACHE_DIR"))
    )


@lru_cache
def _folder_of_kernels(chosen: str | None) -> Path:
    """Where compiled code is kept, found once in a process."""
    try:
        if chosen:
            return own_folder(Path(chosen), "set NUMBA_CACHE_DIR to one of your own", below=True)
        return own_folder(cache_folder() / "numba", below=True)
    except HeadtailError as error:
        warnings.warn(
            f"Kernels are compiled again in each process. {error}", UserWarning, stacklevel=4
        )
    folder = tempfile.mkdtemp(prefix="headtail-")  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


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
