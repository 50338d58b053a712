"""How much memory there is, and how much was taken."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")


def memory_left(device: str) -> int | None:
    """Bytes that can still be taken on a device; None where nobody tells."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        here = 1024 * int(
            next(line for line in lines if line.startswith("MemAvailable:")).split()[1]
        )
        return min(here, _left_to_container(CGROUP) or here)
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _left_to_container(folder: Path) -> int | None:
    """What a container may still take, where it has a limit."""
    with suppress(OSError, ValueError):  # no limit is written as a word
        return max(
            1,
            int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()),
        )
    return None


class Peak:
    """How much memory is taken at the peak from now on."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before = None
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = self._highest()
        else:
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)  # what was freed and kept would hide what is taken
            with suppress(OSError):
                # Linux: forget the highest resident size so far
                Path("/proc/self/clear_refs").write_text("5")
                self.before = self._highest()

    def bytes(self) -> int | None:
        """The highest since, above what was taken already; None where the system does not tell."""
        highest = self._highest()
        return None if highest is None or self.before is None else highest - self.before

    def _highest(self) -> int | None:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        with suppress(OSError, StopIteration, ValueError):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
        return None
