"""The loss over all labels that sampling should approximate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The softmax or the logit-adjusted loss.

    Attributes:
        tau: 0 for the softmax, above 0 for the logit-adjusted loss with this τ.

    >>> Target(0).name, Target(0.5).name, Target(0.5).sampled("uniform", 64)
    ('softmax', 'logit-adjusted(0.5)', 'uniform:tail(0.5)@64')
    """

    tau: float = 0.0

    @property
    def name(self) -> str:
        """The name of its scheme."""
        return f"logit-adjusted{self._suffix}" if self.tau else "softmax"

    @property
    def _suffix(self) -> str:
        return "" if self.tau == 1 else f"({self.tau:g})"

    def sampled(self, sampler: str, m: int) -> str:
        """The scheme that approximates it with this sampler and m negatives."""
        weighting = f"tail{self._suffix}" if self.tau else "importance"
        return f"{sampler}:{weighting}@{m}"
