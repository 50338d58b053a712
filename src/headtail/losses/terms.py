"""From embeddings to what a loss is made of: logits and log-weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from headtail.core.draw import Draw, every_label
from headtail.core.margins import Margin, check_margin
from headtail.core.targets import Pairs, Target
from headtail.core.weightings import FromMargin, Weighting, log_weights
from headtail.errors import HeadtailError, check_kind
from headtail.losses.inputs import (
    Inputs,
    check_draw,
    check_embeddings,
    check_hidden,
    directions,
)
from headtail.losses.options import Settings
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class Terms:
    """All that equations 5 and 6 are made of, for each pair of the batch.

    Attributes:
        positive: `[p]` logits f_y, at least in float32, divided by the temperature; with their
            score margin, if there is one.
        negatives: `[p, m]` logits f_y', alike.
        a: `[p]` and
        b: `[m]` or `[p, m]`: the log-weights.
        mask: `[p, m]` draws that do not count.
        pairs: the targets behind them.
        draw: the negatives behind them.
        num_labels: L, where it is known.
    """

    positive: Float[Tensor, " p"]
    negatives: Float[Tensor, "p m"]
    a: Float[Tensor, " p"]
    b: Float[Tensor, "*p m"]
    mask: Bool[Tensor, "p m"]
    pairs: Pairs
    draw: Draw
    num_labels: int | None


def table_terms(inputs: Inputs, draw: Draw, weighting: Weighting, settings: Settings) -> Terms:
    """Terms from a label table."""
    pairs = inputs.pairs
    # One look-up for positives and negatives: one gather, and one sparse gradient.
    rows = inputs.rows_with(draw)
    split = [len(pairs.label), draw.ids.numel()]
    positive, negatives = F.embedding(rows, inputs.weight, sparse=inputs.sparse).split(split)
    negatives = negatives.reshape(*draw.ids.shape, inputs.weight.shape[1])
    f_y, f = _logits(inputs.hidden, positive, negatives, pairs, settings)
    bias = inputs.bias
    if bias is not None:
        column = bias if bias.dim() == 2 else bias[:, None]
        biases = F.embedding(rows, column, sparse=inputs.sparse and bias.dim() == 2).squeeze(-1)
        b_y, b = biases.split(split)
        f_y = f_y + b_y
        f = f + b.reshape(draw.ids.shape)
    f_y = f_y / settings.temperature
    f = f / settings.temperature
    return _terms(f_y, f, pairs, draw, weighting, len(inputs.weight), settings)


def given_terms(
    input: Tensor,
    positive: Tensor,
    negatives: Tensor,
    target: Target,
    draw: Draw,
    weighting: Weighting,
    num_labels: int | None,
    settings: Settings,
) -> Terms:
    """Terms from embeddings that an item tower made."""
    pairs = Pairs.of(target, num_labels=num_labels, ignore_index=settings.ignore_index)
    check_draw(draw, weighting, pairs, num_labels, "`num_labels` is")
    check_hidden(input, pairs)
    check_kind("negatives", negatives, Tensor, "item_tower(items)")
    num_pairs = len(pairs.label)
    check_embeddings(input, positive, "positive", (num_pairs,))
    lead = ("m",) if negatives.dim() == 2 else (num_pairs, "m")
    check_embeddings(input, negatives, "negatives", lead)
    f_y, f = _logits(input, positive, negatives, pairs, settings)
    if f.shape[-1] != draw.ids.shape[-1] or draw.shared != (negatives.dim() == 2):
        raise HeadtailError(
            "`negatives` must hold one embedding for each drawn id, shape "
            f"{[*draw.ids.shape, input.shape[1]]}, but got {list(negatives.shape)}."
        )
    f_y = f_y / settings.temperature
    f = f / settings.temperature
    return _terms(f_y, f, pairs, draw, weighting, num_labels, settings)


def exact_terms(inputs: Inputs, margin: Margin, settings: Settings) -> Terms:
    """Terms of the exact loss: every label is drawn once, m·q = 1."""
    pairs = inputs.pairs
    f = pairs.rows(exact_logits(inputs, margin, settings))
    f_y = f.gather(1, pairs.label[:, None]).squeeze(1)
    if settings.score_margin is not None:
        cosine = f_y * settings.temperature
        if inputs.bias is not None:
            cosine = cosine - inputs.bias.reshape(-1)[pairs.label]
        f_y = f_y - settings.score_margin.log_rho(cosine, settings.temperature)
    num_labels = len(inputs.weight)
    draw = every_label(num_labels, inputs.weight.device)
    return _terms(f_y, f, pairs, draw, FromMargin(margin), num_labels, settings)


def exact_logits(inputs: Inputs, margin: Margin, settings: Settings) -> Float[Tensor, "b L"]:
    """The logits of all labels divided by the temperature, for a margin that is checked."""
    hidden = inputs.hidden
    weight = inputs.weight
    bias = None if inputs.bias is None else inputs.bias.reshape(-1)
    check_margin(margin, len(weight), other="`weight`")
    if settings.score == "cosine":
        hidden = directions(hidden)
        weight = directions(weight)
    fused = bias is not None and bias.dtype == hidden.dtype
    f = widened(F.linear(hidden, weight, bias if fused else None))
    if bias is not None and not fused:
        f = f + bias
    # [b, L] is large: a division by 1 would be a wasted pass over memory.
    is_one = not isinstance(settings.temperature, Tensor) and settings.temperature == 1
    return f if is_one else f / settings.temperature


def exact_factors(
    inputs: Inputs, settings: Settings
) -> tuple[Float[Tensor, "b d"], Float[Tensor, "L d"], Float[Tensor, " L"] | None]:
    """Hidden states, table and biases (at least in float32) whose products and sums are the logits
    of all labels divided by the temperature.
    """
    hidden = inputs.hidden
    weight = inputs.weight
    bias = None if inputs.bias is None else widened(inputs.bias.reshape(-1))
    if settings.score == "cosine":
        hidden = directions(hidden)
        weight = directions(weight)
    if isinstance(settings.temperature, Tensor) or settings.temperature != 1:
        hidden = hidden / settings.temperature
        bias = None if bias is None else bias / settings.temperature
    return hidden, weight, bias


def _terms(
    f_y: Tensor,
    f: Tensor,
    pairs: Pairs,
    draw: Draw,
    weighting: Weighting,
    num_labels: int | None,
    settings: Settings,
) -> Terms:
    """Logits that the temperature has divided, with their weights and mask."""
    a, b = log_weights(weighting, draw, pairs.label)
    mask = settings.masks(pairs, draw, weighting)
    return Terms(f_y, f, a, b, mask, pairs, draw, num_labels)


def _logits(
    hidden: Tensor, positive: Tensor, negatives: Tensor, pairs: Pairs, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Scores before the temperature divides them. It scales the scores and nothing else: weights
    correct them afterwards.
    """
    if settings.score == "cosine":
        hidden = directions(hidden)
        positive = directions(positive)
        negatives = directions(negatives)
    # Few numbers, and each decides an example: positives are multiplied in float32 in any case.
    f_y = (widened(pairs.rows(hidden)) * widened(positive)).sum(-1)
    if settings.score_margin is not None:
        f_y = settings.score_margin.moved(f_y)
    if negatives.dim() == 2:
        return f_y, widened(pairs.rows(hidden @ negatives.T))
    return f_y, widened(torch.einsum("pd,pmd->pm", pairs.rows(hidden), negatives))
