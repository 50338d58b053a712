"""The sampled softmax cross-entropy (the paper's equation 5), and its exact all-label twin."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.margins import Margin, Separable, Unit
from headtail.core.targets import Target
from headtail.core.weightings import Importance, Weighting
from headtail.errors import HeadtailError, check_number
from headtail.losses.fused import loss_of_rows, ready_for_kernel
from headtail.losses.options import Options, Settings
from headtail.losses.terms import Terms, exact_logits, exact_terms, given_terms, table_terms


def sampled_softmax(
    positive: Float[Tensor, " b"],
    negatives: Float[Tensor, "b m"],
    a: Float[Tensor, " b"],
    b: Float[Tensor, "*b m"],
    mask: Bool[Tensor, "b m"],
) -> Float[Tensor, " b"]:
    r"""Equation 5, with weights $\log w_{yy'} = a(y) + b(y')$:

    $$\ell(y, f; \mathscr{N}, w) = \log\Big[1 + \sum_{y' \in \mathscr{N}} w_{yy'}\, e^{f_{y'} -
    f_y}\Big].$$

    Args:
        positive: `[b]` logits f_y.
        negatives: `[b, m]` logits f_y'.
        a: `[b]` and
        b: `[m]` or `[b, m]`: the log-weights.
        mask: `[b, m]` draws that do not count.

    >>> one, none = torch.zeros(1), torch.zeros(1, 3, dtype=torch.bool)
    >>> sampled_softmax(one, torch.zeros(1, 3), one, torch.zeros(3), none)  # log(1 + 3)
    tensor([1.3863])
    """
    a = a.to(negatives.dtype)
    b = b.to(negatives.dtype)
    log_terms = (negatives + b) + (a - positive)[:, None]
    log_terms = log_terms.masked_fill(mask, -torch.inf)
    one = torch.zeros_like(positive)[:, None]  # log 1
    return torch.logsumexp(torch.cat([one, log_terms], dim=1), dim=1)


def sampled_softmax_loss(
    input: Float[Tensor, "b d"],
    weight: Float[Tensor, "L d"],
    target: Target,
    draw: Draw,
    weighting: Weighting,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    sparse: bool = False,
    **options: Unpack[Options],
) -> Tensor:
    """Sampled softmax cross-entropy against a table of label embeddings.

    What it does to head and tail is decided by the sampler behind `draw` and by `weighting`: see
    `explain`.

    Args:
        input: `[b, d]` hidden states.
        weight: `[L, d]` label table.
        target: `[b]` ids, padded `[b, k]` ids or a `Ragged`; multi-label examples count once for
            each positive.
        draw: the negatives.
        weighting: their weights.
        bias: `[L]` label biases; as `[L, 1]` they can have a row-sparse gradient too.
        label_smoothing: ε; the mean logit it needs is estimated from the draw with importance
            weights.
        sparse: give `weight` a row-sparse gradient.
        **options: see `Options`.

    >>> from headtail import Importance, Uniform
    >>> hidden, table, target = torch.randn(4, 8), torch.randn(100, 8), torch.tensor([5, 0, 99, 5])
    >>> draw = Uniform(100, num_negatives=20).draw(target)
    >>> sampled_softmax_loss(hidden, table, target, draw, Importance()).shape
    torch.Size([])
    """
    settings = Settings.of(options)
    if (
        sparse
        and not label_smoothing
        and (ready := ready_for_kernel(input, weight, bias, target, draw, weighting, settings))
    ):
        return loss_of_rows(
            ready.kernels.sampled_softmax, input, weight, bias, draw, ready, settings
        )
    terms = table_terms(input, weight, bias, target, draw, weighting, sparse, settings)
    return _reduced(terms, label_smoothing)


def two_tower_softmax_loss(
    input: Float[Tensor, "b d"],
    positive: Float[Tensor, "p d"],
    negatives: Float[Tensor, "m d"] | Float[Tensor, "p m d"],
    target: Target,
    draw: Draw,
    weighting: Weighting,
    *,
    label_smoothing: float = 0.0,
    num_labels: int | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """Sampled softmax cross-entropy where an item tower made the embeddings.

    Args:
        input: `[b, d]` query embeddings.
        positive: `[b, d]` embeddings of the targets (`[p, d]`, one a pair, for multi-label
            targets).
        negatives: `[m, d]` or `[b, m, d]` embeddings of `draw.ids`.
        target: ids of the positives, which find collisions.
        draw: ids and probabilities of the negatives.
        weighting: their weights.
        label_smoothing: ε, which needs
        num_labels: L.
        **options: see `Options`.

    >>> from headtail import Labels, Tail, WithinBatch
    >>> labels, target = Labels.from_counts([4, 2, 1]), torch.tensor([0, 2, 0])
    >>> queries, items = torch.randn(3, 8), torch.randn(3, 8)  # items: the batch's own targets
    >>> loss = two_tower_softmax_loss(queries, items, items, target, WithinBatch(labels).draw(target), Tail(labels))
    """
    terms = given_terms(
        input, positive, negatives, target, draw, weighting, num_labels, Settings.of(options)
    )
    return _reduced(terms, label_smoothing)


def softmax_loss(
    input: Float[Tensor, "b d"],
    weight: Float[Tensor, "L d"],
    target: Target,
    margin: Margin | None = None,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    **options: Unpack[Options],
) -> Tensor:
    r"""The exact margin softmax over all labels, $\log\big[1 + \sum_{y' \ne y} \rho_{yy'} e^{f_{y'}
    - f_y}\big]$.

    It is the sampled loss with every label drawn once (m·q = 1). With `Unit` it is torch's
    cross-entropy, with `LogitAdjusted` it leans to the tail.

    Args:
        input: `[b, d]` hidden states.
        weight: `[L, d]` label table.
        target: as in `sampled_softmax_loss`.
        margin: ρ; `Unit()` if None.
        bias: `[L]` label biases.
        label_smoothing: ε, as in torch.
        **options: see `Options`.

    >>> hidden, table, target = torch.randn(4, 8), torch.randn(10, 8), torch.tensor([5, 0, 9, 5])
    >>> exact = torch.nn.functional.cross_entropy(hidden @ table.T, target)
    >>> torch.allclose(softmax_loss(hidden, table, target), exact)
    True
    """
    settings = Settings.of(options)
    margin = Unit() if margin is None else margin
    everything_counts = (
        settings.collisions in (None, "target")
        and settings.known_positives is None
        and not label_smoothing
    )
    if everything_counts and isinstance(margin, Separable) and margin.neutral:
        return _cross_entropy(input, weight, bias, target, margin, settings)
    return _reduced(exact_terms(input, weight, bias, target, margin, settings), label_smoothing)


def _cross_entropy(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    margin: Separable,
    settings: Settings,
) -> Tensor:
    """With ρ(y, y) = 1 the loss is log Σ_y' e^g_y' − g_y, g = f + log ρ₂: one sum a *point*,
    whatever its labels.
    """
    pairs, f = exact_logits(input, weight, bias, target, margin, settings)
    g = (
        f
        if isinstance(margin, Unit)
        else f + margin.log_negative(torch.arange(len(weight), device=weight.device)).to(f.dtype)
    )
    if pairs.example is None:
        return settings.reduce(F.cross_entropy(g, pairs.label, reduction="none"), pairs)
    return settings.reduce(
        torch.logsumexp(g, 1)[pairs.example] - g[pairs.example, pairs.label], pairs
    )


def _reduced(terms: Terms, label_smoothing: float) -> Tensor:
    loss = sampled_softmax(terms.positive, terms.negatives, terms.a, terms.b, terms.mask)
    if label_smoothing:
        check_number("label_smoothing", label_smoothing, low=0, high=1)
        loss = loss + label_smoothing * _above_mean(terms)
    return terms.settings.reduce(loss, terms.pairs)


def _above_mean(terms: Terms) -> Tensor:
    """f_y − (1/L)·Σ_c f_c = (1/L)·Σ_{c ≠ y} (f_y − f_c), estimated with importance weights over
    unmasked draws.

    Written as differences, it does not move when all logits move together.
    """
    if terms.num_labels is None:
        raise HeadtailError("`label_smoothing` needs `num_labels` when the embeddings are given.")
    a, b = Importance().offsets(terms.draw, terms.pairs.label)
    weights = (a[:, None] + b).masked_fill(terms.mask, 0.0).to(terms.negatives.dtype).exp()
    gaps = weights * (terms.positive[:, None] - terms.negatives)
    return gaps.masked_fill(terms.mask, 0.0).sum(1) / terms.num_labels
