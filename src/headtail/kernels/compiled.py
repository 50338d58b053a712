"""Which compilers there are, and where compiled kernels are kept: once a machine, not once a
process.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from headtail.files.cache_folder import cache_folder

HAS_TRITON = find_spec("triton") is not None
"""It comes with torch where torch has CUDA."""
HAS_NUMBA = find_spec("numba") is not None
"""It comes with the extra `cpu`; without it, the CPU runs plain PyTorch."""


def keep_compiled() -> None:
    """Let numba keep its code in headtail's cache folder unless the user has chosen one; call it
    before compiling.
    """
    from numba import config

    if not os.environ.get("NUMBA_CACHE_DIR"):
        config.CACHE_DIR = str(cache_folder() / "numba")  # pyright: ignore[reportAttributeAccessIssue]
