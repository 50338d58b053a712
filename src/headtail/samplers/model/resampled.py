"""Negatives chosen by score from a pool of cheap ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.errors import HeadtailError, check_count, check_kind
from headtail.samplers.interfaces import FixedSampler, Part
from headtail.samplers.model.by_score import interval_at, running_sums
from headtail.samplers.sampler import Claims, Sampler, Step, check_part


@final
class Resampled(Sampler):
    r"""A pool of M labels from a cheap $q^0$, and m draws from it by score: slot s with label $y_s$
    has $p_s \propto e^{f_{y_s}} / q^0_{y_s}$ (sampling, importance, resampling). The larger the
    pool, the nearer to q ∝ e^f.

    How often a label is drawn in the end depends on the rest of the pool, and its q is unknown. But
    with

    $$\hat q = p_s \cdot M \cdot q^0_{y_s}$$

    the weights $\rho / (m \hat q)$ of every margin are unbiased: given the pool, the mean number of
    draws of a slot is $m p_s$, so that the mean of $\sum 1/(m \hat q)$ over the draws of y' is its
    number in the pool over $M q^0_{y'}$, which is 1 on average. Constant and relative weights need
    q itself and are refused. It leans as the weighting's margin does.

    A draw scores M labels per example, whatever L is. The positive is drawn only from a pool that
    holds no other label.

    Args:
        pool: the cheap sampler; its number of negatives is M.
        num_negatives: m.

    >>> from headtail import Uniform
    >>> hidden, table = torch.tensor([[1.0]]), torch.tensor([[0.0], [9.0], [30.0]])
    >>> Resampled(Uniform(3, 100), 2).draw(torch.tensor([0]), input=hidden, weight=table).ids
    tensor([[2, 2]])
    """

    def __init__(self, pool: Sampler, num_negatives: int) -> None:
        super().__init__()
        check_kind("pool", pool, Sampler, "Uniform(labels, 1024)")
        if not isinstance(pool, Part):
            raise HeadtailError(
                f"`pool` must know its q, but `{pool.name}` does not. Write for example "
                "`Uniform(labels, 1024)`."
            )
        check_part(pool, "Resampled")
        self.pool: Part = pool
        self.num_labels = pool.num_labels
        self.num_negatives = check_count("num_negatives", num_negatives)

    def pick(self, step: Step) -> Draw:
        """A pool, and draws from it."""
        model = step.scorer
        label = step.pairs.label
        pool = self.pool.pick(step._replace(fixed_size=False))
        ids, log_q0 = (t.expand(len(label), -1) for t in (pool.ids, pool.log_q))
        if pool.m == 0:
            return Draw(ids, log_q0, None, 0.0, pool.log_keep, marginal=False)
        options = {"dtype": torch.float64, "device": label.device, "generator": step.generator}
        points = torch.rand(len(label), self.num_negatives, **options)
        own = ids == label[:, None]
        g = model.logits(pool.ids).double() - pool.log_q
        g = torch.where(own & ~own.all(1, keepdim=True), -math.inf, g)
        cumulative, total = running_sums(g)
        at = interval_at(cumulative, points)
        log_q = g.gather(1, at) - total + log_q0.gather(1, at) + math.log(pool.m)  # p_s · M · q₀
        m = float(self.num_negatives)
        return Draw(ids.gather(1, at), log_q, None, m, pool.log_keep, marginal=False)

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def variance_of_target(
        self, step: Step, term: Float64[Tensor, "p L"]
    ) -> Float64[Tensor, " p"] | None:
        r"""The variance of the sampled sum, with weights from the margin, if the whole sum has the
        terms T; None if it is unknown.

        The variance of the pool's estimate plus that of drawing from the pool, if its M slots are
        independent:

        $$\frac{M - 1}{M m}\Big[\sum_{y'} T_{y'}^2 e^{-f_{y'}} \cdot \sum_{y'} e^{f_{y'}} -
        \Big(\sum_{y'} T_{y'}\Big)^2\Big].$$

        Args:
            step: the examples.
            term: `[p, L]`, 0 at the positive.
        """
        if not isinstance(self.pool, FixedSampler) or not self.pool.claims.knows_every_q:
            return None
        if not self.pool.independent(step.batch_size):
            return None
        label = step.pairs.label
        every = torch.arange(self.num_labels, device=label.device)
        size = self.pool.m_given(step)
        log_q = self.pool.log_q_given(step, every) - self.pool.log_keep_given(step)[:, None]
        pool_term = torch.where(term > 0, (term.log() - log_q - math.log(size)).exp(), 0.0)
        of_pool = self.pool.variance_given(step, pool_term)
        f = step.scorer.logits(every).double().masked_fill(label[:, None] == every, -math.inf)
        squares = torch.where(term > 0, 2 * term.log() - f, -math.inf)
        second_moment = (torch.logsumexp(squares, 1) + torch.logsumexp(f, 1)).exp()
        spread = (second_moment - term.sum(1) ** 2).clamp(min=0)
        added = spread * (size - 1) / (size * self.num_negatives)
        return None if of_pool is None else of_pool + added

    def independent(self, batch_size: int | None = None) -> bool:
        """No: draws share a pool."""
        return False

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """As for the pool."""
        return self.pool.log_support(ids)

    @property
    def claims(self) -> Claims:
        """Those of the pool, but for each example, by its scores, and without a q for labels."""
        of_draws = {"looks_at_model": True, "shared": False, "marginal": False}
        return replace(self.pool.claims, knows_every_q=False, **of_draws)

    @property
    def samplers(self) -> list[Sampler]:
        """The pool."""
        return [self.pool]

    def extra_repr(self) -> str:
        """m."""
        return f"num_negatives={self.num_negatives}"

    def for_labels(self, labels: Labels) -> Resampled:
        """With a pool of the grown label set."""
        return Resampled(self.pool.for_labels(labels), self.num_negatives)
