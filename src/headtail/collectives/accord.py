"""Decisions that all ranks make together."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from headtail.collectives.ranks import Ranks

_ON_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Accord:
    """What ranks decide together; one process decides alone. Every rank must call it.

    Attributes:
        ranks: who decide; None for one process.

    >>> Accord().any(True, False)
    (True, False)
    """

    ranks: Ranks | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.ranks is None or self.ranks.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether some rank has raised it."""
        return tuple(map(bool, self.highest(*map(int, flags))))

    def highest(self, *numbers: int) -> tuple[int, ...]:
        """For each number, the highest that some rank has."""
        if self.ranks is None:
            return numbers
        every = self.ranks.numbers(list(numbers), _ON_HOST)
        return tuple(max(column) for column in zip(*every, strict=True))

    def of_first(self, value: float) -> float:
        """The number that the first rank has, to the last bit."""
        if self.ranks is None:
            return value
        bits = struct.unpack("q", struct.pack("d", value))
        first = self.ranks.numbers(list(bits), _ON_HOST)[0]
        return struct.unpack("d", struct.pack("q", *first))[0]
