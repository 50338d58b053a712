"""Where the rows of labels are, in a table that several processes share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from headtail.errors import HeadtailError, Setting, check_count
from headtail.kernels.dispatch import placing_kernels

MOST_LABELS = 3_000_000_000
"""Labels of one growth: the square of their number is below 2⁶³."""


@dataclass(frozen=True)
class Placement:
    r"""A bijection between labels and the rows of a shared table, the same for any number of ranks.

    Rank r of n holds the r-th of n equal runs of rows. Label y of L has the row $y \cdot A \bmod
    L$, with A near L divided by the golden ratio and coprime to L: neighbours, and so the most
    frequent labels where labels are sorted by frequency, are spread evenly over all ranks. Labels
    that are added later are placed alike among the rows behind the old ones, which keep theirs.

    Args:
        grown: the number of labels at the start, and of those added each time since.

    >>> placement = Placement((10,))
    >>> placement.rows(torch.arange(10))
    tensor([0, 7, 4, 1, 8, 5, 2, 9, 6, 3])
    >>> placement.labels(torch.tensor([7]))
    tensor([1])
    """

    grown: tuple[int, ...]

    def __post_init__(self) -> None:
        for size in self.grown:
            if check_count("num_labels", size) > MOST_LABELS:
                raise HeadtailError(
                    Setting("num_labels"),
                    f" is {size:,}, but a shared table begins with at most {MOST_LABELS:,} labels. "
                    "Add the others with `grow`.",
                )

    @property
    def num_labels(self) -> int:
        """L."""
        return sum(self.grown)

    def grow(self, number: int) -> Placement:
        """With so many more labels."""
        return Placement((*self.grown, number)) if number else self

    def rows(self, labels: Int[Tensor, ...]) -> Int64[Tensor, ...]:
        """The row of each label, whichever rank holds it."""
        return self._mapped(labels, [forward for forward, _ in self._factors])

    def labels(self, rows: Int[Tensor, ...]) -> Int64[Tensor, ...]:
        """The label of each row."""
        return self._mapped(rows, [backward for _, backward in self._factors])

    def share(self, rank: int, ranks: int) -> Share:
        """The rows of one rank, in runs of the length that `torch.chunk` chooses."""
        run = -(-self.num_labels // ranks)
        start = min(rank * run, self.num_labels)
        return Share(self, start, min(start + run, self.num_labels))

    def runs(self, device: torch.device, *, back: bool = False) -> Int64[Tensor, "k 2"]:
        """Size and factor of each growth, from rows back to labels if wanted, for kernels.

        They are copied to each device once, because a graph cannot hold a copy from the host.
        """
        key = device, back
        if key not in self._runs:
            factors = [backward if back else forward for forward, backward in self._factors]
            pairs = [*zip(self.grown, factors, strict=True)]
            self._runs[key] = torch.tensor(pairs, device=device)
        return self._runs[key]

    def __reduce__(self) -> Any:
        """For pickle and deepcopy: copies on devices are made again where they are needed."""
        return Placement, (self.grown,)

    def _mapped(self, ids: Tensor, factors: list[int]) -> Tensor:
        ids = ids.long()
        start = 0
        mapped = torch.empty_like(ids) if len(self.grown) > 1 else None
        for size, factor in zip(self.grown, factors, strict=True):
            placed = (ids - start).mul_(factor).remainder_(size).add_(start)
            mapped = placed if mapped is None else torch.where(ids >= start, placed, mapped)
            start += size
        assert mapped is not None
        return mapped

    @cached_property
    def _runs(self) -> dict[tuple[torch.device, bool], Tensor]:
        return {}

    @cached_property
    def _factors(self) -> list[tuple[int, int]]:
        return [_factors(size) for size in self.grown]


@dataclass(frozen=True)
class Share:
    """The rows of one rank.

    Attributes:
        placement: of all rows.
        start: the first of them.
        stop: the one behind the last.
    """

    placement: Placement
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def places(self, labels: Int[Tensor, ...]) -> Int64[Tensor, ...]:
        """The place of each label among these rows; outside of them, a number that is none."""
        return self.placement.rows(labels) - self.start

    def holds(self, places: Int64[Tensor, ...]) -> Bool[Tensor, ...]:
        """Which places are among these rows."""
        return (places >= 0) & (places < len(self))

    def own_places(self, labels: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
        """The place of each label among these rows; −1 for those elsewhere, or nowhere."""
        placement = self.placement
        kernels = placing_kernels(labels)
        if kernels is not None:
            runs = placement.runs(labels.device)
            return kernels.mapped(labels, runs, 0, -self.start, len(self))
        places = self.places(labels)
        exists = (labels >= 0) & (labels < placement.num_labels)
        return torch.where(self.holds(places) & exists, places, -1)

    def labels(self, places: Int64[Tensor, ...] | None = None) -> Int64[Tensor, ...]:
        """The labels at these places; by default at all of them."""
        if places is None:
            places = torch.arange(len(self))
        kernels = placing_kernels(places)
        if kernels is not None:
            runs = self.placement.runs(places.device, back=True)
            return kernels.mapped(places, runs, self.start, 0, self.placement.num_labels)
        return self.placement.labels(places + self.start)


def _factors(size: int) -> tuple[int, int]:
    """A and its inverse modulo the size."""
    factor = max(1, round(size * (math.sqrt(5) - 1) / 2))
    while math.gcd(factor, size) > 1:
        factor += 1
    factor %= size
    return (factor, pow(factor, -1, size)) if size > 1 else (1, 1)
