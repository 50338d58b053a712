"""Where compiled kernels are kept, so that they are compiled once a machine and not once a process."""

from __future__ import annotations

import os

from headtail.data.cache import cache_folder


def keep_compiled() -> None:
    """Let numba keep its code in headtail's cache folder unless the user has chosen one; call it before compiling."""
    from numba import config

    if not os.environ.get("NUMBA_CACHE_DIR"):
        config.CACHE_DIR = str(cache_folder() / "numba")  # pyright: ignore[reportAttributeAccessIssue]
