"""explain: what a scheme really optimises, where it leans, and how noisy it is, before any
training.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.labels import Labels, check_labels
from headtail.core.margins import Margin
from headtail.core.pieces import Piece
from headtail.core.weightings import FromMargin, InfoNCE, Weighting
from headtail.errors import (
    HeadtailError,
    PythonName,
    Sentence,
    check_count,
    check_ids,
    check_kind,
    check_num_labels,
    check_number,
)
from headtail.implicit.implied import (
    LEAN_FROM,
    claim,
    implied_margin_of,
    lean_of,
    median_labels,
    usual_slices,
)
from headtail.implicit.names import Name, recognise
from headtail.losses import Loss, SampledLoss
from headtail.samplers import FixedSampler, Sampler, WithinBatch


MOVES = Sentence(
    "The q of these negatives moves with the model: ",
    PythonName("headtail.implicit.on_model"),
    " measures it on a trained one.",
)


@dataclass(frozen=True)
class Example:
    r"""Bias and noise of the sampled loss on one example with positive y and scores f.

    Write X for the sampled sum: $X = \sum_{y' \in \mathscr{N}} w_{yy'} e^{f_{y'} - f_y}$ (softmax)
    or $\sum w_{yy'}\, \varphi(-f_{y'})$ (decoupled).

    Attributes:
        slice: head, torso, tail, or "given".
        label: y.
        unsampled_loss: over all labels, with ρ = 1.
        implicit_loss: over all labels, with the implied ρ; decoupled: also the exact mean of the
            sampled loss.
        bias: implicit minus unsampled.
        variance: of X, exact for this sampler; None where it has no formula. Decoupled: also the
            variance of the loss (the lemma).
        squared_error: of the sampled loss about the implicit one. Softmax: σ²/(mμ²), to first order
            (the theorem); decoupled: the variance.
        noise: its square root, the standard deviation of the sampled loss.
        jensen_gap: softmax: how far the mean sampled loss lies below the implicit one, σ²/(2mμ²) to
            first order.
        needed_m: the m for which the noise falls to the wished one; None where m changes the loss
            itself, or the variance does not fall as 1/m.
    """

    slice: str
    label: int
    unsampled_loss: float
    implicit_loss: float
    bias: float
    variance: float | None
    squared_error: float | None
    noise: float | None
    jensen_gap: float | None
    needed_m: int | None


@dataclass(frozen=True)
class Explanation:
    """All that `explain` found.

    Attributes:
        family: "softmax", or the piece of a decoupled loss.
        sampler: its name, or "all labels".
        weighting: its name.
        m: effective number of negatives.
        margin: the implied ρ; `margin.log_positive` and `margin.log_negative` are its two vectors
            if it splits.
        name: the implicit loss, if it has a name.
        rho: ρ as a formula.
        equation: the implicit loss as an equation.
        lean: log ρ(t, h) − log ρ(h, t) for median tail and head labels, in nats.
        leans: "tail", "head" or "neither".
        never_drawn: number of labels that are never negatives.
        examples: bias and noise, for a median label of each slice or for the scores given.
        notes: what does not hold here, in words.
        sampled_share: share of the negatives that fall on head, torso and tail.
        optimal_share: the same for the minimum-variance q* of the first example.
        unbiased_with: the weighting that would make this sampler unbiased; None for all-label
            losses.
        logit_adjusted_with: the weighting that would make it logit-adjusted.
    """

    family: str
    sampler: str
    weighting: str
    m: float | None
    margin: Margin
    name: str | None
    rho: str
    equation: str
    lean: float
    leans: str
    never_drawn: int
    examples: list[Example]
    notes: list[str]
    sampled_share: dict[str, float]
    optimal_share: dict[str, float]
    unbiased_with: str | None
    logit_adjusted_with: str | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the margin's vectors; numbers that are not finite become None."""
        found = asdict(self)
        del found["margin"]
        return _finite(found)


def explain(
    loss: Loss,
    labels: Labels,
    *,
    batch_size: int = 256,
    scores: Float[Tensor, "n L"] | None = None,
    target: Int[Tensor, " n"] | None = None,
    noise: float = 0.1,
) -> Explanation:
    """Say what a loss really does to head and tail, and how noisy its sampling is.

    Args:
        loss: a sampler with a weighting (`SampledSoftmaxLoss`, `SampledDecoupledLoss`) or an exact
            loss.
        labels: the label distribution.
        batch_size: B, which decides the number of within-batch negatives.
        scores: `[n, L]` logits of a model, with
        target: `[n]` positives; without them, an untrained model (all scores 0) and a median label
            of each slice.
        noise: the wished standard deviation of the sampled loss, for `needed_m`.

    >>> from headtail import Constant, SampledSoftmaxLoss, WithinBatch
    >>> labels = Labels.zipf(1000)
    >>> found = explain(SampledSoftmaxLoss(WithinBatch(labels), Constant()), labels, batch_size=128)
    >>> found.name, found.rho, found.leans
    ('equalised loss (Tan et al. 2020)', "π_y'", 'tail')
    """
    check_number("noise", noise, low=1e-12)
    check_count("batch_size", batch_size)
    loss = getattr(loss, "loss", loss)  # a LabelHead has one
    check_kind("loss", loss, Loss, 'scheme("within-batch:tail", labels)')
    check_labels(labels)
    labels = labels.to("cpu")
    margin = implied_margin_of(loss, batch_size)
    sampler, weighting = (
        (loss.sampler, loss.weighting) if isinstance(loss, SampledLoss) else (None, None)
    )
    if sampler is not None and sampler.num_labels != labels.num_labels:
        raise HeadtailError(
            f"`loss` samples from {sampler.num_labels} labels, but `labels` has "
            f"{labels.num_labels}. Pass the same."
        )
    check_num_labels("margin", margin.num_labels, "`labels` has", labels.num_labels)
    m = None if sampler is None else sampler.expected_m(batch_size)
    named = recognise(margin, labels, m)
    lean = lean_of(margin, labels)
    cases = _cases(labels, scores, target)
    inspect = _Inspector(loss, margin, sampler, weighting, batch_size, noise, scores is None)
    q = None
    if isinstance(sampler, FixedSampler):
        q = sampler.log_q(torch.arange(labels.num_labels), batch_size).exp()
    never_drawn = 0 if q is None else int((q == 0).sum())
    keep = "(1 − q_y)" if sampler is not None and sampler.claims.excludes_target else "1"
    # a pool's: see Resampled
    told = "q_y'" if sampler is None or sampler.claims.marginal else "q̂_y'"
    return Explanation(
        family=loss.piece.name if loss.piece else "softmax",
        sampler="all labels" if sampler is None else sampler.name,
        weighting="none" if weighting is None else type(weighting).__name__,
        m=m,
        margin=margin,
        name=named.decoupled if loss.piece else named.softmax,
        rho=named.rho,
        equation=_equation(named, loss.piece),
        lean=lean,
        leans="tail" if lean > LEAN_FROM else "head" if lean < -LEAN_FROM else "neither",
        never_drawn=never_drawn,
        examples=[inspect.example(*case) for case in cases],
        notes=inspect.notes(never_drawn),
        sampled_share={} if q is None else _shares(q, labels),
        optimal_share=_shares(optimal_q(margin, cases[0][1], cases[0][2], loss.piece), labels),
        unbiased_with=None if sampler is None else f"importance: w = {keep}/(m · {told})",
        logit_adjusted_with=None
        if sampler is None
        else f"tail: w = π_y'/π_y · {keep}/(m · {told})",
    )


def optimal_q(
    margin: Margin, label: int, scores: Float[Tensor, " L"], piece: Piece | None = None
) -> Float64[Tensor, " L"]:
    r"""The sampling distribution of minimum variance for a margin and scores, positive excluded.

    Decoupled losses: $q^* \propto \rho_{yy'}\,|\varphi(-f_{y'})|$; softmax: $q^* \propto
    \rho_{yy'}\, e^{f_{y'}}$. With it, and weights from the margin, the sampled sum has no variance
    at all (where φ keeps one sign). If every term is 0, so is q*.

    Args:
        margin: ρ.
        label: the positive y.
        scores: `[L]` logits.
        piece: of a decoupled loss; None for the softmax.

    >>> from headtail import Unit
    >>> optimal_q(Unit(), 0, torch.tensor([0.0, 1.0, 1.0]))
    tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    target = torch.tensor([label])
    check_ids("label", target, len(scores))
    log_rho = margin.log_rho(target, torch.arange(len(scores)))[0]
    f = scores.double().cpu()
    log_terms = log_rho + (f if piece is None else piece.negative(-f).abs().log())
    log_terms[label] = -math.inf
    total = torch.logsumexp(log_terms, 0)
    return (log_terms - total).exp() if bool(total > -math.inf) else torch.zeros_like(log_terms)


class _Inspector:
    """Bias and noise of one scheme, example by example."""

    def __init__(
        self,
        loss: Loss,
        margin: Margin,
        sampler: Sampler | None,
        weighting: Weighting | None,
        batch_size: int,
        noise: float,
        untrained: bool,
    ) -> None:
        self.loss = loss
        self.piece = loss.piece
        self.margin = margin
        self.sampler = sampler
        self.weighting = weighting
        self.batch_size = batch_size
        self.noise = noise
        self.untrained = untrained
        self.shrinks = (
            sampler is not None
            and weighting is not None
            and _inverse_in_m(sampler, weighting, batch_size)
        )

    def example(self, slice_: str, label: int, scores: Tensor) -> Example:
        f = scores.double().cpu()
        ids = torch.arange(len(scores))
        log_rho = self.margin.log_rho(torch.tensor([label]), ids)[0]
        unsampled, implicit = (
            self._loss(log_margin, f, label) for log_margin in (torch.zeros_like(log_rho), log_rho)
        )
        squared = self._squared_error(label, f, implicit)
        variance = squared if squared is None or self.piece else squared * _exp(2 * implicit)
        gap = None if squared is None or self.piece else squared / 2
        noise = None if squared is None else math.sqrt(squared)
        needed = None if squared is None else self._needed(squared)
        return Example(
            slice_,
            label,
            unsampled,
            implicit,
            implicit - unsampled,
            variance,
            squared,
            noise,
            gap,
            needed,
        )

    def _loss(self, log_rho: Tensor, f: Tensor, label: int) -> float:
        others = torch.arange(len(f)) != label
        if self.piece is None:
            log_terms = (log_rho + f - f[label])[others]
            return float(torch.logsumexp(torch.cat([log_terms.new_zeros(1), log_terms]), 0))
        return float(
            self.piece.positive(f[label]) + (log_rho.exp() * self.piece.negative(-f))[others].sum()
        )

    def _squared_error(self, label: int, f: Tensor, implicit: float) -> float | None:
        """The variance of X; for the softmax in units of 1 + E[X] = e^implicit, so that scores of
        10^4 do not overflow.
        """
        if not isinstance(self.sampler, FixedSampler) or self.weighting is None:
            return None
        target = torch.tensor([label])
        draw = claim(self.sampler, target, self.batch_size)
        a, b = self.weighting.offsets(draw, target)
        log_w = (a[:, None] + b).reshape(-1)
        softmax = (log_w + f - f[label] - implicit).exp()
        term = softmax if self.piece is None else log_w.exp() * self.piece.negative(-f)
        term = torch.where(draw.log_q > -math.inf, term, 0.0)
        term[label] = 0.0
        return self.sampler.variance_of_sum(term, label, self.batch_size)

    def _needed(self, squared: float) -> int | None:
        if (
            not self.shrinks
            or self.sampler is None
            or not self.sampler.independent(self.batch_size)
        ):
            return None
        return max(
            1,
            math.ceil(
                self.sampler.expected_m(self.batch_size) * squared / self.noise**2 * (1 - 1e-12)
            ),
        )

    def _counts_copies(self) -> bool:
        if not isinstance(self.sampler, WithinBatch) or self.weighting is None:
            return False
        settings = self.loss.settings
        by_default = (
            settings.collisions is None
            and settings.known_positives is None
            and self.weighting.collisions == "slot"
        )
        return settings.collisions == "slot" or by_default

    def notes(self, never_drawn: int) -> list[str]:
        notes = []
        if self.loss.post_hoc:
            notes.append(
                f"Answers are adjusted afterwards, f − {self.loss.post_hoc:g}·log π, which leans "
                "to the tail."
            )
        if self.loss.settings.collisions == "none":
            notes.append(
                "Collisions are kept, so the positive also counts as its own negative: that is "
                "left out here."
            )
        if self._counts_copies():
            effect = "push its own label down" if self.piece else "divide it by about 1 + ρ(y, y)"
            if isinstance(self.weighting, InfoNCE) and not self.piece:
                effect += " = 1 + m · π_y, which leans further to the tail"
            notes.append(
                "Only the example's own slot is masked: copies of the positive in the batch count "
                "as negatives. "
                f"ρ, which is for y' ≠ y, leaves them out; they {effect}."
            )
        if self.loss.options.get("label_smoothing"):
            notes.append("Label smoothing is left out here.")
        if self.sampler is None:
            return notes
        if not isinstance(self.sampler, FixedSampler):
            return [*notes, MOVES]
        if never_drawn:
            notes.append(
                f"{never_drawn:,} labels are never drawn, so they are never pushed down, whatever "
                "the weights say."
            )
        if not self.shrinks:
            notes.append(
                "These weights are not of the form η/m: more negatives change the loss itself, "
                "which grows like log m."
            )
        if (
            self.sampler.variance_of_sum(
                torch.zeros(self.sampler.num_labels).double(), 0, self.batch_size
            )
            is None
        ):
            notes.append(
                "How these negatives depend on each other is not known, so the variance has no "
                "formula."
            )
        elif not self.sampler.independent(self.batch_size):
            notes.append(
                "These draws are not independent: the variance is exact for this m, and no formula "
                "tells it for another."
            )
        if self.piece is not None and self.piece.cosine and self.untrained:
            notes.append(
                "An untrained model's cosines are all 0, where these negatives cost nothing: pass "
                "scores to see noise."
            )
        return notes


def _inverse_in_m(sampler: Sampler, weighting: Weighting, batch_size: int) -> bool:
    """Whether w = η/m with η free of m: twice the negatives, half the weight."""
    if not isinstance(sampler, FixedSampler):
        return isinstance(weighting, FromMargin)
    target = torch.zeros(1, dtype=torch.int64)
    ids = torch.arange(min(sampler.num_labels, 2))
    m = sampler.expected_m(batch_size)
    if m == 0:
        return False
    (a1, b1), (a2, b2) = (
        weighting.offsets(sampler.describe(ids, target, n, batch_size), target) for n in (m, 2 * m)
    )
    shift = ((a1[:, None] + b1) - (a2[:, None] + b2)).nan_to_num(math.log(2))
    return bool((shift - math.log(2)).abs().max() < 1e-9)


def _cases(
    labels: Labels, scores: Tensor | None, target: Tensor | None
) -> list[tuple[str, int, Tensor]]:
    if scores is None and target is None:
        untrained = torch.zeros(labels.num_labels, dtype=torch.float64)
        return [(name, label, untrained) for name, label in median_labels(labels).items()]
    if scores is None or target is None:
        raise HeadtailError(
            "`scores` and `target` belong together: pass both, or neither for an untrained model."
        )
    check_kind("scores", scores, Tensor, "head.logits(hidden)")
    check_kind("target", target, Tensor, "torch.tensor([3, 1, 4])")
    if scores.dim() != 2 or scores.shape != (len(target), labels.num_labels):
        raise HeadtailError(
            f"`scores` must have shape [{len(target)}, {labels.num_labels}], but got "
            f"{list(scores.shape)}."
        )
    if not bool(torch.isfinite(scores).all()):
        raise HeadtailError("`scores` must be finite, but some are NaN or infinite.")
    check_ids("target", target, labels.num_labels)
    return [("given", int(y), row) for y, row in zip(target, scores, strict=True)]


def _shares(q: Tensor, labels: Labels) -> dict[str, float]:
    slices = usual_slices(labels)
    total = float(q.sum())
    return {
        name: float(q[getattr(slices, name)].sum()) / total if total else 0.0
        for name in slices.sizes
    }


def _equation(named: Name, piece: Piece | None) -> str:
    rho = "" if named.rho == "1" else f"{named.rho} · "
    if piece is None:
        return f"log[1 + Σ_{{y'≠y}} {rho}e^(f_y' − f_y)]"
    return f"φ(f_y) + Σ_{{y'≠y}} {rho}ϕ(−f_y')"


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
