"""What samplers, margins and losses read about labels, however it was counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.slices import Slices
from headtail.errors import HeadtailError, PythonName, Setting


class LabelFrequencies(ABC):
    """How often each label occurs: what samplers, margins and losses read.

    `Labels` were counted once and stay as they are; `StreamingLabels` are estimated while the data
    pass by.

    Attributes:
        counts: `[L]` examples per label.
        smoothing: pseudo-count that `prior` adds to every label.
        total: N, the number of training examples.
        rarest: the smallest prior, min π.
        never_seen: number of labels without a single training example.
    """

    unchanging: ClassVar[bool] = True
    """Whether look-ups give the same in every step, so that a CUDA graph may hold them."""
    counts: Tensor
    smoothing: float
    total: float
    rarest: float
    never_seen: int

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """L."""

    @property
    @abstractmethod
    def prior(self) -> Float64[Tensor, " L"]:
        """`[L]` the prior π."""

    @abstractmethod
    def log_prior(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log π of any labels. A look-up, so it costs O(ids) whatever L is."""

    @abstractmethod
    def log_frequency(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log n/N of any labels, *unsmoothed*: how often batches really hold them."""

    @abstractmethod
    def fixed(self) -> LabelFrequencies:
        """These frequencies as they are now, which stay."""

    @abstractmethod
    def grow(self, counts: Any) -> LabelFrequencies:
        """New frequencies with more labels behind the old ones, which keep their ids."""

    @abstractmethod
    def to(self, device: torch.device | str) -> LabelFrequencies:
        """The same labels on another device; rarely needed, because look-ups follow their ids."""

    def slices(self, head: float = 100, tail: float = 20) -> Slices:
        """Head, torso and tail by training count: head ≥ `head`, tail < `tail`."""
        return Slices.by_count(self.counts, head, tail)

    def slices_by_mass(self, head: float = 1 / 3, torso: float = 1 / 3) -> Slices:
        """Head, torso and tail by share of the training examples."""
        return Slices.by_mass(self.counts, head, torso)

    def require_positive_prior(self, who: str) -> None:
        """Refuse labels with π = 0, for losses that divide by it."""
        if self.rarest == 0:
            raise HeadtailError(
                PythonName(who),
                f" needs a positive prior for every label, but {self.never_seen} of "
                f"{self.num_labels} have none. Count with ",
                Setting("smoothing", 1),
                ", or drop labels that never occur.",
            )
