"""The implied margin: which loss a sampler and a weighting really optimise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import CustomSeparable, Margin, Pairwise, Separable
from headtail.core.score_margins import scaled
from headtail.core.slices import Slices
from headtail.core.weightings import FromMargin, Weighting
from headtail.errors import HeadtailError, PythonName, Setting, check_kind
from headtail.losses.modules import ExactLoss, Loss, SampledLoss
from headtail.samplers import Draw, FixedSampler, ModelSampler, Sampler, Scorer, Step

LEAN_FROM = 1e-6
"""Below this many nats a loss leans nowhere."""
POST_HOC = Setting("post_hoc")
PAIRS_AT_ONCE = 2**20
"""Pairs of labels whose margin is held at a time."""


def claim(sampler: FixedSampler, target: Int[Tensor, " n"], batch_size: int | None = None) -> Draw:
    """A draw that holds every label once, with what the sampler claims of each: the way to read off
    all its q and weights.
    """
    ids = torch.arange(sampler.num_labels, device=target.device)
    return sampler.describe(ids, target, sampler.expected_m(batch_size), batch_size)


def implied_margin(
    sampler: Sampler,
    weighting: Weighting,
    batch_size: int | None = None,
    model: Scorer | None = None,
) -> Margin:
    r"""The margin $\rho_{yy'} = m \cdot q_{y'} \cdot w_{yy'}$ that training with this sampler and
    weighting optimises.

    Separable weights give a separable margin, two vectors over labels at any L. A label that is
    never drawn has ρ = 0.

    Args:
        sampler: q.
        weighting: w.
        batch_size: B, which decides the m of `WithinBatch`.
        model: one example and the label table, for samplers that follow the model. Without it,
            only weights made from a margin imply a margin: the same one.

    >>> from headtail import Constant, Labels, WithinBatch
    >>> labels = Labels.from_counts([7, 2, 1])
    >>> margin = implied_margin(WithinBatch(labels), Constant(), batch_size=8)
    >>> margin.negative.exp()  # the equalised loss: ρ = π_y'
    tensor([0.7000, 0.2000, 0.1000], dtype=torch.float64)
    """
    if not isinstance(sampler, FixedSampler):
        return _implied_on_model(sampler, weighting, batch_size, model)
    if not sampler.claims.knows_every_q:
        raise HeadtailError(
            "`Given` knows the log q of its own ids only. Pass `log_q` as a function of ids to "
            "explain it."
        )
    if sampler.expected_m(batch_size) == 0:
        raise HeadtailError(
            Setting("batch_size"),
            f" is {batch_size}: an example alone has no negatives from its batch. Use at least 2.",
        )
    if isinstance(weighting, FromMargin) and not isinstance(weighting.margin, Separable):
        return Pairwise(
            lambda y, others: _log_rho(sampler, weighting, y.reshape(-1), others, batch_size)
        )
    every = torch.arange(sampler.num_labels)
    draw = claim(sampler, every, batch_size)
    a, b = weighting.offsets(draw, every)
    negative = torch.where(draw.log_q > -math.inf, b + draw.log_m + draw.log_q, -math.inf)
    return _tidy(a - draw.log_keep, negative)


def _implied_on_model(
    sampler: Sampler, weighting: Weighting, batch_size: int | None, model: Scorer | None
) -> Margin:
    if isinstance(weighting, FromMargin) and (model is None or not sampler.claims.marginal):
        return weighting.margin
    if model is None or not isinstance(sampler, ModelSampler):
        raise HeadtailError(
            PythonName(type(weighting).__name__),
            " on ",
            PythonName(sampler.name),
            " optimises no fixed loss: its margin follows the scores of the model. Use weights "
            "that come from a margin, such as ",
            PythonName("Importance"),
            " or ",
            PythonName("Tail"),
            ".",
        )

    def log_rho(y: Tensor, others: Tensor) -> Tensor:
        label = y.reshape(-1)
        rows = replace(model, input=model.input.expand(len(label), -1))
        step = Step.expected(label, batch_size, rows)
        log_q = sampler.log_q_given(step, others.squeeze(0) if len(others) == 1 else others)
        log_q_target = sampler.log_q_given(step, label[:, None]).squeeze(1)
        keep = sampler.log_keep_given(step)
        ids = others.expand(log_q.shape)
        draw = Draw(ids, log_q, log_q_target, sampler.expected_m(batch_size), keep)
        a, b = weighting.offsets(draw, label)
        return torch.where(
            log_q > -math.inf, (a - keep)[:, None] + b + draw.log_m + log_q, -math.inf
        )

    return Pairwise(log_rho)


def _log_rho(
    sampler: FixedSampler,
    weighting: Weighting,
    target: Tensor,
    others: Tensor,
    batch_size: int | None,
) -> Tensor:
    draw = sampler.describe(
        others.squeeze(0) if len(others) == 1 else others,
        target,
        sampler.expected_m(batch_size),
        batch_size,
    )
    a, b = weighting.offsets(draw, target)
    keep = torch.as_tensor(draw.log_keep, dtype=torch.float64)
    log_rho = (a - keep)[:, None] + b + draw.log_m + draw.log_q
    return torch.where(draw.log_q > -math.inf, log_rho, -math.inf)


def _tidy(positive: Tensor, negative: Tensor) -> CustomSeparable:
    # The two parts are known up to a constant. Where one part is constant, the other takes it, so
    # that both read like equations.
    for constant_in, sign in ((positive, 1), (negative, -1)):
        finite = constant_in[constant_in > -math.inf]
        if len(finite) and float(finite.max() - finite.min()) < 1e-9:
            shift = sign * finite[0]
            # The constant part becomes an exact 0, not what is left of a subtraction.
            zero = torch.where(constant_in > -math.inf, 0.0, -math.inf)
            return (
                CustomSeparable(zero, negative + shift)
                if sign == 1
                else CustomSeparable(positive - shift, zero)
            )
    return CustomSeparable(positive, negative)


def implied_margin_of(
    loss: Loss, batch_size: int | None = None, model: Scorer | None = None
) -> Margin:
    """The margin a loss module optimises: implied for sampled losses, its own for exact ones.

    A `score_margin` that is the same at every score is part of it; one that is not, is not.
    """
    margin = margin_of_negatives(loss, batch_size, model)
    by_score = loss.settings.score_margin
    if by_score is None or by_score.constant is None:
        return margin
    return scaled(margin, by_score.constant / float(loss.temperature))


def margin_of_negatives(
    loss: Loss, batch_size: int | None = None, model: Scorer | None = None
) -> Margin:
    """The same, without any `score_margin`."""
    if isinstance(loss, SampledLoss):
        return implied_margin(loss.sampler, loss.weighting, batch_size, model)
    check_kind("loss", loss, ExactLoss, 'scheme("within-batch:tail", labels)')
    assert isinstance(loss, ExactLoss)
    return loss.margin


def median_labels(labels: Labels, slices: Slices | None = None) -> dict[str, int]:
    """The label of median count in each slice, among labels that occur at all; slices are thirds
    of the examples unless others are given.
    """
    slices = labels.slices_by_mass() if slices is None else slices
    seen = {
        name: (getattr(slices, name) & (labels.counts > 0)).nonzero().squeeze(1)
        for name in slices.sizes
    }
    return {name: _median(labels, ids) for name, ids in seen.items() if len(ids)}


def _median(labels: Labels, ids: Tensor) -> int:
    return int(ids[labels.counts[ids].argsort(stable=True)[(len(ids) - 1) // 2]])


def lean_of(margin: Margin, labels: Labels, slices: Slices | None = None) -> float:
    r"""How far a margin leans, in nats: $\log\rho(t, h) - \log\rho(h, t)$ for a median tail label t
    and a median head label h.

    Above 0 the rare label must win by more than the frequent one: the loss leans to the tail. Below
    0, to the head. It is the mean over all labels with the counts of t and h, so that the order of
    labels with equal counts does not matter. Where all counts are equal there is neither head
    nor tail, and the lean is 0. Head and tail are thirds of the examples unless `slices` are given.

    >>> from headtail import LogitAdjusted
    >>> labels = Labels.from_counts([1000, 10])
    >>> round(lean_of(LogitAdjusted(labels), labels), 3)  # 2 · log(1000 / 10)
    9.21
    """
    counts = labels.counts
    medians = median_labels(labels, slices)
    head_count = counts[medians["head"]] if "head" in medians else counts.max()
    tail_count = counts[medians["tail"]] if "tail" in medians else counts.min()
    if bool(head_count == tail_count):
        return 0.0
    head = (counts == head_count).nonzero().squeeze(1)
    tail = (counts == tail_count).nonzero().squeeze(1)
    forward = _mean_log_rho(margin, tail, head)
    backward = _mean_log_rho(margin, head, tail)
    # Labels that never push each other down lean nowhere: −inf − (−inf) is not a number.
    return 0.0 if forward == backward else forward - backward


def _mean_log_rho(margin: Margin, positives: Tensor, negatives: Tensor) -> float:
    """The mean of log ρ over all pairs."""
    if isinstance(margin, Separable):
        return _mean(margin.log_positive(positives)) + _mean(margin.log_negative(negatives))
    rows = positives.split(max(1, PAIRS_AT_ONCE // len(negatives)))
    return sum(float(margin.log_rho(some, negatives).sum()) for some in rows) / (
        len(positives) * len(negatives)
    )


def _mean(values: Tensor) -> float:
    """Without rounding where all are equal, as for margins that depend on nothing but counts."""
    return float(values[0]) if bool((values == values[0]).all()) else float(values.mean())


def refuse_to_correct_twice(lean: float, option: str | Setting = POST_HOC) -> None:
    """Refuse post-hoc adjustment of a loss that leans to the tail by itself.

    Args:
        lean: of the training loss, from `lean_of`.
        option: how the adjustment was asked for.
    """
    if lean > LEAN_FROM:
        neutral = "softmax" if isinstance(option, Setting) else "softmax+post-hoc"
        raise HeadtailError(
            option,
            " would correct twice: the training loss already leans to the tail by "
            f"{lean:.2f} nats. Drop ",
            option,
            f", or train with a loss that leans to neither side, for example `{neutral}`.",
        )
