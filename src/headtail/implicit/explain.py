"""explain: what a scheme really optimises, where it leans, and how noisy it is."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.labels import Labels, check_labels
from headtail.core.margins import Margin
from headtail.core.pieces import Piece
from headtail.core.slices import Slices
from headtail.errors import (
    HeadtailError,
    check_count,
    check_ids,
    check_kind,
    check_num_labels,
    check_number,
)
from headtail.implicit.by_score import named_with, positive_score
from headtail.implicit.examples import Case, Inspector, given_cases, untrained_cases
from headtail.implicit.explanation import Explanation
from headtail.implicit.implied import (
    LEAN_FROM,
    implied_margin_of,
    lean_of,
    margin_of_negatives,
)
from headtail.implicit.names import Name, recognise
from headtail.implicit.notes import notes_of
from headtail.losses import Loss, SampledLoss
from headtail.samplers import FixedSampler, Sampler

NOISE = 0.1
"""Standard deviation of the sampled loss, in nats, that `needed_m` is for by default."""


def explain(
    loss: Loss,
    labels: Labels,
    *,
    batch_size: int = 256,
    scores: Float[Tensor, "n L"] | None = None,
    target: Int[Tensor, " n"] | None = None,
    noise: float | None = None,
    slices: Slices | None = None,
) -> Explanation:
    """Explain what a loss really does to head and tail, and how noisy its sampling is.

    The lean and the implicit loss hold for any model. Noise depends on the scores: without them it
    is that of an untrained model, and no number of negatives follows from it.

    Args:
        loss: a sampled loss (a sampler with a weighting) or an exact loss.
        labels: the label distribution.
        batch_size: B, which decides the number of within-batch negatives.
        scores: `[n, L]` logits of a model; without them, all are 0, for a median label per slice.
        target: `[n]` positives, passed together with `scores`.
        noise: with scores, the deviation of the sampled loss that `needed_m` is for; 0.1 nats.
        slices: head, torso and tail; by default each holds about a third of the examples.

    >>> from headtail import Constant, SampledSoftmaxLoss, WithinBatch
    >>> labels = Labels.zipf(1000)
    >>> loss = SampledSoftmaxLoss(WithinBatch(labels), Constant())
    >>> explanation = explain(loss, labels, batch_size=128)
    >>> explanation.name, explanation.rho, explanation.leans
    ('equalised loss (Tan et al. 2020)', "π_y'", 'tail')
    """
    check_count("batch_size", batch_size)
    check_labels(labels)
    labels = labels.to("cpu")
    loss = _checked(loss, labels)
    margin = implied_margin_of(loss, batch_size)
    check_num_labels("margin", margin.num_labels, "`labels` has", labels.num_labels)
    slices = labels.slices_by_mass() if slices is None else slices
    cases, wished = _cases(labels, slices, scores, target, noise)
    inspector = Inspector(loss, margin, batch_size, wished)
    facts = _sampling(getattr(loss, "sampler", None), slices, batch_size)
    weights = margin_of_negatives(loss, batch_size)
    named = named_with(loss, recognise(weights, labels, facts["m"]))
    lean = lean_of(margin, labels, slices)
    optimal = optimal_q(margin, cases[0].label, cases[0].scores, loss.piece)
    return Explanation(
        family=loss.piece.name if loss.piece else "softmax",
        weighting=type(loss.weighting).__name__ if isinstance(loss, SampledLoss) else "none",
        margin=margin,
        name=named.decoupled if loss.piece else named.softmax,
        rho=named.rho,
        equation=_equation(named, loss),
        lean=lean,
        leans="tail" if lean > LEAN_FROM else "head" if lean < -LEAN_FROM else "neither",
        scores="untrained" if wished is None else "given",
        examples=[inspector.example(case) for case in cases],
        notes=notes_of(loss, batch_size, facts["never_drawn"], untrained=wished is None),
        optimal_share=_shares(optimal, slices),
        **facts,
    )


def _checked(loss: Any, labels: Labels) -> Loss:
    loss = getattr(loss, "loss", loss)  # a LabelHead has one
    check_kind("loss", loss, Loss, 'scheme("within-batch:tail", labels)')
    size = loss.sampler.num_labels if isinstance(loss, SampledLoss) else labels.num_labels
    if size != labels.num_labels:
        raise HeadtailError(
            f"`loss` samples from {size} labels, but `labels` has {labels.num_labels}. Pass the "
            "same."
        )
    return loss


def _cases(
    labels: Labels,
    slices: Slices,
    scores: Tensor | None,
    target: Tensor | None,
    noise: float | None,
) -> tuple[list[Case], float | None]:
    """The examples to explain, and the requested noise; None for an untrained model."""
    if (scores is None) != (target is None):
        raise HeadtailError(
            "`scores` and `target` belong together: pass both, or neither for an untrained model."
        )
    if noise is not None:
        check_number("noise", noise, low=1e-12)
    if scores is not None and target is not None:
        return given_cases(labels, scores, target), NOISE if noise is None else noise
    if noise is not None:
        raise HeadtailError(
            "`noise` needs the scores of a model: how many negatives reach it is unknown for an "
            "untrained one. Pass `scores` and `target`."
        )
    return untrained_cases(labels, slices), None


def _sampling(sampler: Sampler | None, slices: Slices, batch_size: int) -> dict[str, Any]:
    """The fields of an explanation that describe the sampler."""
    if sampler is None:
        return {
            "sampler": "all labels",
            "m": None,
            "never_drawn": 0,
            "sampled_share": {},
            "unbiased_with": None,
            "logit_adjusted_with": None,
        }
    q = None
    if isinstance(sampler, FixedSampler):
        q = sampler.log_q(torch.arange(len(slices.of_label)), batch_size).exp()
    keep = "(1 − q_y)" if sampler.claims.excludes_target else "1"
    claimed = "q_y'" if sampler.claims.marginal else "q̂_y'"  # a pool's: see Resampled
    return {
        "sampler": sampler.name,
        "m": sampler.expected_m(batch_size),
        "never_drawn": 0 if q is None else int((q == 0).sum()),
        "sampled_share": {} if q is None else _shares(q, slices),
        "unbiased_with": f"importance: w = {keep}/(m · {claimed})",
        "logit_adjusted_with": f"tail: w = π_y'/π_y · {keep}/(m · {claimed})",
    }


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


def _shares(q: Tensor, slices: Slices) -> dict[str, float]:
    total = float(q.sum())
    return {
        name: float(q[getattr(slices, name)].sum()) / total if total else 0.0
        for name in slices.sizes
    }


def _equation(named: Name, loss: Loss) -> str:
    rho = "" if named.rho == "1" else f"{named.rho} · "
    if loss.piece is None:
        return f"log[1 + Σ_{{y'≠y}} {rho}e^(f_y' − {positive_score(loss)})]"
    return f"φ(f_y) + Σ_{{y'≠y}} {rho}ϕ(−f_y')"
