"""From embeddings to what a loss is made of: logits and log-weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from headtail.core.draw import Draw, every_label
from headtail.core.margins import Margin, Unit, check_margin
from headtail.core.targets import Pairs, Target
from headtail.core.weightings import FromMargin, Weighting, log_weights
from headtail.errors import (
    HeadtailError,
    check_ids,
    check_kind,
    check_num_labels,
    check_same_device,
)
from headtail.losses.options import Settings


@dataclass(frozen=True, eq=False)
class Terms:
    """All that equations 5 and 6 are made of, for each pair of the batch.

    Attributes:
        positive: `[p]` logits f_y, at least in float32, divided by the temperature.
        negatives: `[p, m]` logits f_y', alike.
        a: `[p]` and
        b: `[m]` or `[p, m]`: the log-weights.
        mask: `[p, m]` draws that do not count.
        pairs: the targets behind them.
        draw: the negatives behind them.
        num_labels: L, where it is known.
        settings: options of the loss.
    """

    positive: Float[Tensor, " p"]
    negatives: Float[Tensor, "p m"]
    a: Float[Tensor, " p"]
    b: Float[Tensor, "*p m"]
    mask: Bool[Tensor, "p m"]
    pairs: Pairs
    draw: Draw
    num_labels: int | None
    settings: Settings


def table_terms(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    draw: Draw,
    weighting: Weighting,
    sparse: bool,
    settings: Settings,
) -> Terms:
    """Terms from a label table; with `sparse`, its gradient holds just the rows used."""
    check_table(input, weight, bias)
    pairs = Pairs.of(target, num_labels=len(weight), ignore_index=settings.ignore_index)
    check_draw(draw, pairs, len(weight))
    check_weighting(weighting, "`weight`", len(weight))
    # One look-up for positives and negatives: one gather, and one sparse gradient.
    rows = torch.cat([pairs.label, draw.ids.reshape(-1)])
    split = [len(pairs.label), draw.ids.numel()]
    positive, negatives = F.embedding(rows, weight, sparse=sparse).split(split)
    f_y, f = _logits(
        input, positive, negatives.reshape(*draw.ids.shape, weight.shape[1]), pairs, settings
    )
    if bias is not None:
        column = bias if bias.dim() == 2 else bias[:, None]
        b_y, b = (
            F.embedding(rows, column, sparse=sparse and bias.dim() == 2).squeeze(-1).split(split)
        )
        f_y = f_y + b_y
        f = f + b.reshape(draw.ids.shape)
    return _terms(
        f_y / settings.temperature,
        f / settings.temperature,
        pairs,
        draw,
        weighting,
        len(weight),
        settings,
    )


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
    check_draw(draw, pairs, num_labels)
    check_weighting(weighting, "`num_labels` is", num_labels)
    f_y, f = _logits(input, positive, negatives, pairs, settings)
    if f.shape[-1] != draw.ids.shape[-1] or draw.shared != (negatives.dim() == 2):
        raise HeadtailError(
            "`negatives` must hold one embedding for each drawn id, shape "
            f"{[*draw.ids.shape, input.shape[1]]}, "
            f"but got {list(negatives.shape)}."
        )
    return _terms(
        f_y / settings.temperature,
        f / settings.temperature,
        pairs,
        draw,
        weighting,
        num_labels,
        settings,
    )


def exact_terms(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    margin: Margin | None,
    settings: Settings,
) -> Terms:
    """Terms of the exact loss: every label is drawn once, m·q = 1."""
    margin = Unit() if margin is None else margin
    pairs, f = exact_logits(input, weight, bias, target, margin, settings)
    f = pairs.rows(f)
    f_y = f.gather(1, pairs.label[:, None]).squeeze(1)
    draw = every_label(len(weight), weight.device)
    return _terms(f_y, f, pairs, draw, FromMargin(margin), len(weight), settings)


def exact_logits(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    margin: Margin,
    settings: Settings,
) -> tuple[Pairs, Float[Tensor, "b L"]]:
    """Checked targets, and the logits of all labels divided by the temperature."""
    check_table(input, weight, bias)
    check_margin(margin, len(weight), other="`weight`")
    pairs = Pairs.of(target, num_labels=len(weight), ignore_index=settings.ignore_index)
    check_input(input, pairs)
    if settings.score == "cosine":
        input = directions(input)
        weight = directions(weight)
    fused = bias is not None and bias.dtype == input.dtype
    f = _at_least_float32(
        F.linear(input, weight, bias.reshape(-1) if bias is not None and fused else None)
    )
    f = f if bias is None or fused else f + bias.reshape(-1)
    # [b, L] is large: a division by 1 is a walk through memory for nothing.
    return pairs, f if _is_one(settings.temperature) else f / settings.temperature


def _terms(
    f_y: Tensor,
    f: Tensor,
    pairs: Pairs,
    draw: Draw,
    weighting: Weighting,
    num_labels: int | None,
    settings: Settings,
) -> Terms:
    """The logits come divided by the temperature, which scales the scores and nothing else: weights
    correct them afterwards.
    """
    a, b = log_weights(weighting, draw, pairs.label)
    return Terms(
        f_y, f, a, b, settings.masks(pairs, draw, weighting), pairs, draw, num_labels, settings
    )


def _logits(
    input: Tensor, positive: Tensor, negatives: Tensor, pairs: Pairs, settings: Settings
) -> tuple[Tensor, Tensor]:
    check_input(input, pairs)
    check_kind("negatives", negatives, Tensor, "item_tower(items)")
    _check_embeddings(input, positive, "positive", (len(pairs.label),))
    _check_embeddings(
        input, negatives, "negatives", ("m",) if negatives.dim() == 2 else (len(pairs.label), "m")
    )
    if settings.score == "cosine":
        input = directions(input)
        positive = directions(positive)
        negatives = directions(negatives)
    # Few numbers, and each decides an example: the positives are multiplied in float32 whatever the
    # inputs are.
    f_y = (_at_least_float32(pairs.rows(input)) * _at_least_float32(positive)).sum(-1)
    if negatives.dim() == 2:
        return f_y, _at_least_float32(pairs.rows(input @ negatives.T))
    return f_y, _at_least_float32(torch.einsum("pd,pmd->pm", pairs.rows(input), negatives))


def directions(vectors: Tensor) -> Tensor:
    """Vectors of length 1; a zero vector stays one. In float32, because its guard against division
    by zero is 0 in float16.
    """
    return F.normalize(_at_least_float32(vectors), dim=-1).to(vectors.dtype)


def _is_one(temperature: float | Tensor) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 1


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_draw(draw: Draw, pairs: Pairs, num_labels: int | None) -> None:
    """Refuse a draw that was made for other targets."""
    check_kind("draw", draw, Draw, "sampler.draw(target)")
    check_same_device("draw.ids", draw.ids, "target", pairs.label)
    check_ids("draw.ids", draw.ids, num_labels)
    have = len(pairs.label)
    for made in draw.made_for:
        if made != have:
            raise HeadtailError(
                f"`draw` was made for {made} targets, but there are {have}. Write "
                "`sampler.draw(target)` anew."
            )


def check_weighting(weighting: Weighting, other: str, num_labels: int | None) -> None:
    """Refuse a weighting over other labels than the table."""
    check_kind("weighting", weighting, Weighting, "Importance()")
    check_num_labels("weighting", weighting.num_labels, other, num_labels)


def check_input(input: Tensor, pairs: Pairs) -> None:
    """Refuse hidden states that do not fit the targets."""
    check_kind("input", input, Tensor, "torch.randn(b, d)")
    if input.dim() != 2 or len(input) != pairs.num_examples:
        want = f"[b, d] with b = {pairs.num_examples} targets"
        raise HeadtailError(
            f"`input` must have shape {want}, but got {list(input.shape)}. Flatten what has more "
            "axes."
        )
    if not input.is_floating_point():
        raise HeadtailError(f"`input` must be floating point, but got {input.dtype}.")
    check_same_device("target", pairs.label, "input", input)


def check_table(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Refuse a table that does not fit the inputs."""
    check_kind("input", input, Tensor, "torch.randn(b, d)")
    check_kind("weight", weight, Tensor, "head.weight")
    if weight.dim() != 2 or input.dim() != 2 or weight.shape[1] != input.shape[1]:
        raise HeadtailError(
            f"`weight` must have shape [L, d] and `input` [b, d], but got {list(weight.shape)} and "
            f"{list(input.shape)}."
        )
    check_same_device("weight", weight, "input", input)
    _check_dtypes(input, weight, "weight")
    if bias is not None:
        check_kind("bias", bias, Tensor, "torch.zeros(L)")
        check_same_device("bias", bias, "input", input)
    if bias is not None and bias.shape not in ((len(weight),), (len(weight), 1)):
        raise HeadtailError(f"`bias` must have shape [{len(weight)}], but got {list(bias.shape)}.")


def _check_embeddings(
    input: Tensor, embeddings: Tensor, name: str, lead: tuple[int | str, ...]
) -> None:
    check_kind(name, embeddings, Tensor, "item_tower(items)")
    wanted = [*lead, input.shape[-1]]
    fits = embeddings.dim() == len(wanted) and all(
        w in ("m", n) for w, n in zip(wanted, embeddings.shape, strict=True)
    )
    if not fits:
        shape = ", ".join(map(str, wanted))
        raise HeadtailError(
            f"`{name}` must have shape [{shape}] to fit `input` and `target`, but got "
            f"{list(embeddings.shape)}."
        )
    check_same_device(name, embeddings, "input", input)
    _check_dtypes(input, embeddings, name)


def _check_dtypes(input: Tensor, other: Tensor, name: str) -> None:
    if input.dtype != other.dtype and not torch.is_autocast_enabled(input.device.type):
        raise HeadtailError(
            f"`{name}` is {other.dtype} but `input` is {input.dtype}. Cast one, or use "
            "`torch.autocast`."
        )
