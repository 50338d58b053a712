"""The two kinds of samplers that know their q: fixed ones, and those that follow the model."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeAlias

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.samplers.sampler import Sampler, Step


class FixedSampler(Sampler):
    """A sampler with one q for all examples, whatever the model."""

    @abstractmethod
    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """The log-probability of any labels.

        Only a mixture with a part that depends on the batch size needs `batch_size`.
        """

    @abstractmethod
    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        r"""The variance of $\sum_{y' \in \mathscr{N}} t_{y'}$ for an example with this positive.

        None if it has no formula. The caller sets `term[label]` to 0 if collisions are masked.
        """

    def log_keep(self, label: Int[Tensor, " b"]) -> Float64[Tensor, " b"] | float:
        """log(1 − q_y) for samplers that never draw the positive, 0 for the others."""
        return 0.0

    def describe(
        self,
        ids: Int[Tensor, "*b m"],
        label: Int[Tensor, " b"],
        m: float,
        batch_size: int | None = None,
    ) -> Draw:
        """The `Draw` that holds these ids, for examples with these positives."""
        log_q = self.log_q(ids, batch_size)
        return Draw(ids, log_q, self.log_q(label, batch_size), m, self.log_keep(label))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """`[p, k]` log q of any labels (`[k]` or `[p, k]` ids) in this step."""
        return self.log_q(ids).expand(len(step.pairs.label), ids.shape[-1])

    def log_keep_given(self, step: Step) -> Float64[Tensor, " p"]:
        """`[p]` log(1 − q_y) in this step where the positive is never drawn, else 0."""
        label = step.pairs.label
        return torch.zeros_like(label, dtype=torch.float64) + self.log_keep(label)

    def variance_given(
        self, step: Step, term: Float64[Tensor, "p L"]
    ) -> Float64[Tensor, " p"] | None:
        """`variance_of_sum` for the examples of a step, with terms for each."""
        rows = zip(term, step.pairs.label, strict=True)
        variances = [self.variance_of_sum(row, int(y), step.batch_size) for row, y in rows]
        if None in variances:
            return None
        return torch.tensor(variances, dtype=torch.float64, device=term.device)

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q, in any batch of more than one example."""
        return self.log_q(ids, batch_size=2)


class ModelSampler(Sampler):
    """A sampler with a q that follows the model, so that each example has its own."""

    @abstractmethod
    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """`[p, k]` log q of any labels (`[k]` or `[p, k]` ids) in this step."""

    def log_keep_given(self, step: Step) -> Float64[Tensor, " p"]:
        """`[p]` log(1 − q_y) in this step where the positive is never drawn, else 0."""
        return torch.zeros_like(step.pairs.label, dtype=torch.float64)

    def variance_given(
        self, step: Step, term: Float64[Tensor, "p L"]
    ) -> Float64[Tensor, " p"] | None:
        r"""`[p]` the variance of $\sum_{y' \in \mathscr{N}} t_{y'}$ for the examples of a step.

        None where draws depend on each other in an unknown way.
        """
        if not self.independent(step.batch_size):
            return None
        label = step.pairs.label
        every = torch.arange(self.num_labels, device=label.device)
        q = (self.log_q_given(step, every) - self.log_keep_given(step)[:, None]).exp()
        if self.claims.excludes_target:
            q = q.masked_fill(label[:, None] == every, 0.0)
        seen = torch.where(q > 0, term, 0.0)  # 0 · inf: what is never drawn does not matter
        mean = (q * seen).sum(1, keepdim=True)
        return self.m_given(step) * (q * (seen - mean) ** 2).sum(1)

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """Every label may be drawn."""
        return torch.zeros_like(ids, dtype=torch.float64)


Part: TypeAlias = FixedSampler | ModelSampler
"""A sampler that knows its q, so that it can be part of another."""


def iid_variance(q: Float64[Tensor, " L"], term: Float64[Tensor, " L"]) -> tuple[float, float]:
    """Mean and variance of t over one draw from q.

    The variance is taken about the mean, so that it is never negative.
    """
    # 0 · inf: a label with q = 0 is never drawn, whatever its term.
    seen = torch.where(q > 0, term, 0.0)
    mean = (q * seen).sum()
    return float(mean), float((q * (seen - mean) ** 2).sum())
