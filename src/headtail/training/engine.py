"""How the trainer runs, as far as that is not part of the experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """How often the trainer checks and saves, and what it keeps where.

    None of it is saved with a run: a run may be resumed with another engine.

    Attributes:
        save_every: seconds between checkpoints within an epoch. There is one after an epoch too,
            unless the latest is a few seconds old.
        check_every: steps between checks of the loss: for divergence, the progress bar, the clock.
        check_seconds: seconds between these checks if that many steps take longer.
        dense_below: up to this many features, a dense matrix product is faster than gathering rows.
        share_of_memory: the share of the free GPU memory that the data set may take.
        capture: whether steps are captured as CUDA graphs where that is possible.
        large_table: numbers in a table from which it is initialised on its device, because a CPU
            would take seconds, and may be stored in bfloat16.
        narrow_on: types of devices on which large tables may be stored in bfloat16.
        sharded: spread the label table, and every batch, over the ranks of the process group, with
            a copy of the encoder on each. Every rank makes the same `Trainer`; the first rank
            writes the files.
    """

    save_every: float = 60.0
    check_every: int = 100
    check_seconds: float = 1.0
    dense_below: int = 4096
    share_of_memory: float = 0.4
    capture: bool = True
    large_table: int = 2**24
    narrow_on: tuple[str, ...] = ("cuda",)
    sharded: bool = False
