"""Where the cache is."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$HEADTAIL_CACHE`, or `headtail` in the user's cache folder."""
    if chosen := os.environ.get("HEADTAIL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headtail"
