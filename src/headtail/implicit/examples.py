"""Bias and noise of a sampled loss, example by example."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Margin
from headtail.core.pieces import Piece
from headtail.core.slices import Slices
from headtail.core.weightings import FromMargin, Weighting
from headtail.errors import HeadtailError, check_ids, check_kind
from headtail.implicit.by_score import log_rho_at
from headtail.implicit.implied import claim, median_labels
from headtail.losses import Loss, SampledLoss
from headtail.samplers import FixedSampler, Sampler


@dataclass(frozen=True)
class Example:
    r"""Bias and noise of the sampled loss on one example with positive y and scores f.

    Write X for the sampled sum: $X = \sum_{y' \in \mathscr{N}} w_{yy'} e^{f_{y'} - f_y}$ (softmax)
    or $\sum w_{yy'}\, \varphi(-f_{y'})$ (decoupled).

    All figures are for the scores f. Where none are given, they are those of an untrained model,
    with all scores equal. Training changes them: a few labels come to score far above the others,
    and the noise can grow a hundredfold. So `noise` and `needed_m` exist for given scores only.

    Attributes:
        slice: head, torso, tail, or "given".
        label: y.
        unsampled_loss: over all labels, with ρ = 1.
        implicit_loss: over all labels, with the implied ρ; decoupled: also the exact mean of the
            sampled loss.
        bias: implicit minus unsampled.
        variance: of X, exact for this sampler; None where it has no formula. Decoupled: also the
            variance of the loss (the lemma).
        squared_error: of the sampled loss about the implicit one. Softmax: σ²/(mμ²), to first
            order (the theorem); decoupled: the variance.
        jensen_gap: softmax: how far the mean sampled loss lies below the implicit one, σ²/(2mμ²)
            to first order.
        noise_untrained: the root of the squared error, which is the standard deviation of the
            sampled loss, of an untrained model; None for given scores.
        noise: the same for given scores; None for an untrained model.
        needed_m: the m for which the noise of the given scores falls to the wished one; None for an
            untrained model, where m changes the loss itself, and where the variance does not fall
            as 1/m.
    """

    slice: str
    label: int
    unsampled_loss: float
    implicit_loss: float
    bias: float
    variance: float | None
    squared_error: float | None
    jensen_gap: float | None
    noise_untrained: float | None
    noise: float | None
    needed_m: int | None


@dataclass(frozen=True, eq=False)
class Case:
    """A positive label and the scores of all labels."""

    slice: str
    label: int
    scores: Float[Tensor, " L"]


def untrained_cases(labels: Labels, slices: Slices) -> list[Case]:
    """A median label of each slice, with all scores equal."""
    equal = torch.zeros(labels.num_labels, dtype=torch.float64)
    return [Case(name, label, equal) for name, label in median_labels(labels, slices).items()]


def given_cases(labels: Labels, scores: Tensor, target: Tensor) -> list[Case]:
    """Examples of a model, after checking them."""
    check_kind("scores", scores, Tensor, "head.logits(hidden)")
    check_kind("target", target, Tensor, "torch.tensor([3, 1, 4])")
    wanted = [len(target), labels.num_labels]
    if list(scores.shape) != wanted:
        raise HeadtailError(f"`scores` must have shape {wanted}, but got {list(scores.shape)}.")
    if not bool(torch.isfinite(scores).all()):
        raise HeadtailError("`scores` must be finite, but some are NaN or infinite.")
    check_ids("target", target, labels.num_labels)
    return [Case("given", int(y), row) for y, row in zip(target, scores, strict=True)]


@dataclass(frozen=True, eq=False)
class Inspector:
    """A scheme whose examples are looked at.

    Attributes:
        loss: what is explained.
        margin: the ρ that it implies.
        batch_size: B.
        wished_noise: the noise for which negatives are counted; None for an untrained model, whose
            noise says nothing about how many are needed.
    """

    loss: Loss
    margin: Margin
    batch_size: int
    wished_noise: float | None

    @property
    def piece(self) -> Piece | None:
        """The pieces of a decoupled loss."""
        return self.loss.piece

    def example(self, case: Case) -> Example:
        """Bias and noise of one example."""
        f = case.scores.double().cpu()
        log_rho = self.margin.log_rho(torch.tensor([case.label]), torch.arange(len(f)))[0]
        by_score = self.loss.settings.score_margin
        if by_score is not None and by_score.constant is None:  # a constant one is part of ρ
            log_rho = log_rho + log_rho_at(self.loss, f[case.label])
        unsampled = self._loss(torch.zeros_like(log_rho), f, case.label)
        implicit = self._loss(log_rho, f, case.label)
        squared = self._squared_error(case.label, f, implicit)
        deviation = None if squared is None else math.sqrt(squared)
        untrained = self.wished_noise is None
        variance = squared
        gap = None
        if squared is not None and self.piece is None:
            variance = squared * _exp(2 * implicit)
            gap = squared / 2
        return Example(
            slice=case.slice,
            label=case.label,
            unsampled_loss=unsampled,
            implicit_loss=implicit,
            bias=implicit - unsampled,
            variance=variance,
            squared_error=squared,
            jensen_gap=gap,
            noise_untrained=deviation if untrained else None,
            noise=None if untrained else deviation,
            needed_m=self._needed(squared),
        )

    def _loss(self, log_rho: Tensor, f: Tensor, label: int) -> float:
        others = torch.arange(len(f)) != label
        if self.piece is None:
            log_terms = (log_rho + f - f[label])[others]
            return float(torch.logsumexp(torch.cat([log_terms.new_zeros(1), log_terms]), 0))
        negatives = (log_rho.exp() * self.piece.negative(-f))[others].sum()
        return float(self.piece.positive(f[label]) + negatives)

    def _squared_error(self, label: int, f: Tensor, implicit: float) -> float | None:
        """The variance of X; for the softmax in units of 1 + E[X] = e^implicit.

        So scores of 10^4 do not overflow.
        """
        loss = self.loss
        if not isinstance(loss, SampledLoss) or not isinstance(loss.sampler, FixedSampler):
            return None
        target = torch.tensor([label])
        draw = claim(loss.sampler, target, self.batch_size)
        a, b = loss.weighting.offsets(draw, target)
        log_w = (a[:, None] + b).reshape(-1) + log_rho_at(loss, f[label])
        softmax = (log_w + f - f[label] - implicit).exp()
        term = softmax if self.piece is None else log_w.exp() * self.piece.negative(-f)
        term = torch.where(draw.log_q > -math.inf, term, 0.0)
        term[label] = 0.0
        return loss.sampler.variance_of_sum(term, label, self.batch_size)

    def _needed(self, squared: float | None) -> int | None:
        loss = self.loss
        if squared is None or self.wished_noise is None or not isinstance(loss, SampledLoss):
            return None
        falls = inverse_in_m(loss.sampler, loss.weighting, self.batch_size)
        if not falls or not loss.sampler.independent(self.batch_size):
            return None
        m = loss.sampler.expected_m(self.batch_size) * squared / self.wished_noise**2
        return max(1, math.ceil(m * (1 - 1e-12)))


def inverse_in_m(sampler: Sampler, weighting: Weighting, batch_size: int) -> bool:
    """Whether w = η/m with η free of m: twice the negatives, half the weight."""
    if not isinstance(sampler, FixedSampler):
        return isinstance(weighting, FromMargin)
    target = torch.zeros(1, dtype=torch.int64)
    ids = torch.arange(min(sampler.num_labels, 2))
    m = sampler.expected_m(batch_size)
    if m == 0:
        return False
    a1, b1 = weighting.offsets(sampler.describe(ids, target, m, batch_size), target)
    a2, b2 = weighting.offsets(sampler.describe(ids, target, 2 * m, batch_size), target)
    shift = ((a1[:, None] + b1) - (a2[:, None] + b2)).nan_to_num(math.log(2))
    return bool((shift - math.log(2)).abs().max() < 1e-9)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
