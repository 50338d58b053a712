"""How much memory is free, and how much was used."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from headtail.errors import HeadtailError, Setting

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux keeps the limits of a container."""


def memory_left(device: str, limits: Path = CGROUP) -> int | None:
    """Bytes that are free on a device; None where the system does not report them.

    Args:
        device: "cpu" or "cuda".
        limits: the folder with a container's limits.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with suppress(OSError, StopIteration, ValueError):
        free = _kibibytes(Path("/proc/meminfo"), "MemAvailable:")
        return min(free, _left_to_container(limits) or free)
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


@contextmanager
def explained_out_of_memory(what: str) -> Iterator[None]:
    """Turn a GPU that is out of memory into one sentence.

    Args:
        what: needs the memory, at the beginning of that sentence.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        raise HeadtailError(
            f"{what} ran out of GPU memory: {free:.1f} of {total:.0f} GiB are free. Run fewer at "
            "once, choose a smaller ",
            Setting("batch"),
            " or ",
            Setting("dim"),
            ", or train on the CPU.",
        ) from error


class Peak:
    """The peak of memory use from now on."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before = None
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = self._highest()
            return
        with suppress(OSError, AttributeError):
            # Memory that was freed but kept by the allocator would hide new use.
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            # Linux: reset the highest resident size.
            Path("/proc/self/clear_refs").write_text("5")
            self.before = self._highest()

    def bytes(self) -> int | None:
        """Bytes at the peak, above what was in use at the start; None where the system does not
        report them.
        """
        highest = self._highest()
        return None if highest is None or self.before is None else highest - self.before

    def _highest(self) -> int | None:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        with suppress(OSError, StopIteration, ValueError):
            return _kibibytes(Path("/proc/self/status"), "VmHWM:")
        return None


def _kibibytes(file: Path, name: str) -> int:
    """A line such as `MemAvailable:  123 kB`, in bytes."""
    line = next(line for line in file.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _left_to_container(folder: Path) -> int | None:
    """Bytes that a container may still use; None where it has no limit."""
    with suppress(OSError, ValueError):  # no limit is written as a word
        limit = int((folder / "memory.max").read_text())
        return max(1, limit - int((folder / "memory.current").read_text()))
    return None
