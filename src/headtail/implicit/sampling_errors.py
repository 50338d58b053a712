"""Errors of sampled sums and gradients against the exact ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from headtail.core.weightings import FromMargin
from headtail.implicit.by_score import log_rho_at
from headtail.losses import SampledLoss
from headtail.samplers import Draw, FixedSampler, ModelSampler, Resampled, Scorer, Step

PROBABILITIES_AT_ONCE = 2**22
"""Probabilities held in memory at a time."""


@dataclass(frozen=True)
class Gradient:
    """A sampled gradient against the exact one.

    Attributes:
        bias: length of its mean error, in units of the exact gradient; the part that noise adds
            is subtracted.
        error: root of its mean squared error, in the same units.
        cosine: mean cosine between the two.
    """

    bias: float
    error: float
    cosine: float


def gradients_of(
    loss: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each example, and the gradients of their sum."""
    hidden = hidden.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    with torch.enable_grad():
        each = loss(hidden, weight)
        grad_hidden, grad_weight = torch.autograd.grad(each.sum(), (hidden, weight))
    return each.detach().double(), grad_hidden, grad_weight


class GradientErrors:
    """Sums of the errors of sampled gradients over draws, row by row or for the whole tensor."""

    def __init__(self, exact: Tensor, *, rows: bool) -> None:
        self.exact = exact
        self.rows = rows
        self.count = 0
        self.total = torch.zeros_like(exact)
        self.squares = 0.0
        self.cosines = 0.0
        self.length = self._dot(exact, exact).sqrt()

    def _dot(self, left: Tensor, right: Tensor) -> Tensor:
        products = (left * right).sum(1, dtype=torch.float64)
        return products if self.rows else products.sum()

    def add(self, gradient: Tensor) -> None:
        """Count the gradient of another draw."""
        error = gradient - self.exact
        self.squares = self.squares + self._dot(error, error)
        self.total += error
        lengths = self._dot(gradient, gradient).sqrt() * self.length
        # A gradient of length 0 has no direction.
        self.cosines = self.cosines + torch.where(
            lengths > 0, self._dot(gradient, self.exact) / lengths.clamp(min=1e-300), 0.0
        )
        self.count += 1

    def summary(self) -> Gradient:
        """Means over draws, and then over rows with an exact gradient other than 0."""
        mean = self.total / self.count
        squared_mean = self._dot(mean, mean)
        mean_square = torch.as_tensor(self.squares) / self.count
        # The mean of n errors has a squared length of bias² + variance/n.
        bias = (squared_mean - (mean_square - squared_mean) / (self.count - 1)).clamp(min=0).sqrt()
        some = self.length > 0
        parts = (
            bias / self.length,
            mean_square.sqrt() / self.length,
            torch.as_tensor(self.cosines) / self.count,
        )
        return Gradient(*(float(part[some].mean()) if bool(some.any()) else 0.0 for part in parts))


def effective_negatives(loss: SampledLoss, draw: Draw, label: Tensor, model: Scorer) -> float:
    """Mean of (Σ t)² / Σ t² over the terms of the sum, collisions left out."""
    if draw.ids.shape[-1] == 0:
        return 0.0
    a, b = loss.weighting.offsets(draw, label)
    f = model.logits(draw.ids).double()
    log_t = a[:, None] + b + (f if loss.piece is None else loss.piece.negative(-f).abs().log())
    log_t = log_t.masked_fill(draw.ids == label[:, None], -math.inf)
    log_sum = torch.logsumexp(log_t, 1)
    log_squares = torch.logsumexp(2 * log_t, 1)
    return float(torch.where(log_sum > -math.inf, (2 * log_sum - log_squares).exp(), 0.0).mean())


def variance_of_sums(
    loss: SampledLoss,
    model: Scorer,
    label: Tensor,
    exact: Float64[Tensor, " p"],
    batch_size: int,
    at_once: int = PROBABILITIES_AT_ONCE,
) -> Float64[Tensor, " p"] | None:
    """The variance of each example's sampled sum; None where the sampler has no formula for it.

    Args:
        loss: the sampled loss.
        model: scores of the examples.
        label: `[p]` their positives.
        exact: `[p]` their exact losses; the variance of a softmax is in units of their e^loss.
        batch_size: examples in a batch.
        at_once: probabilities held in memory at a time.
    """
    claims = loss.sampler.claims
    if claims.marginal and not claims.knows_every_q:
        return None
    # Examples that share a draw stay together: alone, each would have another q.
    size = claims.group * max(1, at_once // len(model.weight) // claims.group)
    variances = []
    for rows in torch.arange(len(label), device=label.device).split(size):
        few = replace(model, input=model.input[rows])
        y = label[rows]
        f = few.logits(slice(0, len(model.weight))).double()
        positive = f.gather(1, y[:, None])
        relative = f - positive + log_rho_at(loss, positive) - exact[rows, None]
        cost = relative.exp() if loss.piece is None else loss.piece.negative(-f)
        # the positive is masked
        variance = _variance(loss, few, y, cost.scatter(1, y[:, None], 0.0), batch_size)
        if variance is None:
            return None
        variances.append(variance)
    return torch.cat(variances)


def _variance(
    loss: SampledLoss, model: Scorer, label: Tensor, cost: Tensor, batch_size: int
) -> Tensor | None:
    """The variance of Σ w·cost over the draws."""
    sampler = loss.sampler
    every = torch.arange(cost.shape[1], device=label.device)
    step = Step.expected(label, batch_size, model)
    if isinstance(sampler, Resampled):
        assert isinstance(loss.weighting, FromMargin), "others are refused"
        term = loss.weighting.margin.log_rho(label, every).exp() * cost
        return sampler.variance_of_target(step, term)
    assert isinstance(sampler, FixedSampler | ModelSampler), "a sampler without q is a pool"
    log_q = sampler.log_q_given(step, every)
    log_q_target = log_q.gather(1, label[:, None]).squeeze(1)
    keep = sampler.log_keep_given(step)
    m = sampler.expected_m(batch_size)
    draw = Draw(every.expand_as(log_q), log_q, log_q_target, m, keep)
    a, b = loss.weighting.offsets(draw, label)
    # Avoids 0 · inf: a label that is never drawn has an infinite weight, the positive costs 0.
    term = torch.where((log_q == -math.inf) | (cost == 0), 0.0, (a[:, None] + b).exp() * cost)
    return sampler.variance_given(step, term)
