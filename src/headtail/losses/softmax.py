"""The sampled softmax cross-entropy (the paper's equation 5), and its exact all-label twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.margins import Margin, Separable, Unit
from headtail.core.targets import Target
from headtail.core.weightings import Importance, Weighting
from headtail.errors import HeadtailError, check_number
from headtail.losses.chunked import chunked_softmax
from headtail.losses.fused import fused_loss
from headtail.losses.inputs import Inputs, check_draw
from headtail.losses.options import Options, Settings
from headtail.losses.terms import Terms, exact_logits, exact_terms, given_terms, table_terms


@dataclass(frozen=True, eq=False)
class SoftmaxSettings(Settings):
    """Options of the softmax losses: those of all losses, and ε of label smoothing."""

    own: ClassVar[tuple[str, ...]] = ("label_smoothing",)
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("label_smoothing", self.label_smoothing, low=0, high=1)


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

    >>> zero, none = torch.zeros(1), torch.zeros(1, 3, dtype=torch.bool)
    >>> sampled_softmax(zero, torch.zeros(1, 3), zero, torch.zeros(3), none)  # log(1 + 3)
    tensor([1.3863])
    """
    a = a.to(negatives.dtype)
    b = b.to(negatives.dtype)
    log_terms = (negatives + b) + (a - positive)[:, None]
    log_terms = log_terms.masked_fill(mask, -torch.inf)
    log_one = torch.zeros_like(positive)[:, None]
    return torch.logsumexp(torch.cat([log_one, log_terms], dim=1), dim=1)


def sampled_softmax_loss(
    input: Float[Tensor, "*b d"],
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
        input: `[b, d]` hidden states, or `[B, T, d]` with targets `[B, T]`.
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
    settings = SoftmaxSettings.of({**options, "label_smoothing": label_smoothing})
    inputs = Inputs.of(input, weight, bias, target, settings.ignore_index, sparse)
    check_draw(draw, weighting, inputs.pairs, len(weight))
    return softmax_of_draw(inputs, draw, weighting, settings)


def softmax_of_draw(
    inputs: Inputs, draw: Draw, weighting: Weighting, settings: SoftmaxSettings
) -> Tensor:
    """The reduced loss of equation 5 of a draw that is checked: by a kernel if there is one for
    these inputs, else as it is written above.
    """
    loss = None if settings.label_smoothing else fused_loss(inputs, draw, weighting, settings)
    if loss is None:
        loss = _reduced(table_terms(inputs, draw, weighting, settings), settings)
    return loss


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
    >>> draw = WithinBatch(labels).draw(target)
    >>> loss = two_tower_softmax_loss(queries, items, items, target, draw, Tail(labels))
    """
    settings = SoftmaxSettings.of({**options, "label_smoothing": label_smoothing})
    terms = given_terms(input, positive, negatives, target, draw, weighting, num_labels, settings)
    return _reduced(terms, settings)


def softmax_loss(
    input: Float[Tensor, "*b d"],
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
        input: `[b, d]` hidden states, or `[B, T, d]` with targets `[B, T]`.
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
    settings = SoftmaxSettings.of({**options, "label_smoothing": label_smoothing})
    inputs = Inputs.of(input, weight, bias, target, settings.ignore_index)
    return exact_softmax(inputs, Unit() if margin is None else margin, settings)


def exact_softmax(inputs: Inputs, margin: Margin, settings: SoftmaxSettings) -> Tensor:
    """The reduced loss over all labels."""
    everything_counts = settings.collisions in (None, "target") and settings.known_positives is None
    if everything_counts and isinstance(margin, Separable):
        loss = chunked_softmax(inputs, margin, settings, settings.label_smoothing)
        if loss is not None:
            return loss
        as_scored = settings.score_margin is None  # the positive has one score, above and below
        if margin.neutral and as_scored and not settings.label_smoothing:
            return _cross_entropy(inputs, margin, settings)
    return _reduced(exact_terms(inputs, margin, settings), settings)


def _cross_entropy(inputs: Inputs, margin: Separable, settings: Settings) -> Tensor:
    """With ρ(y, y) = 1 the loss is log Σ_y' e^g_y' − g_y, g = f + log ρ₂: one sum per *point*,
    however many labels it has.
    """
    pairs = inputs.pairs
    g = exact_logits(inputs, margin, settings)
    if not isinstance(margin, Unit):
        every_label = torch.arange(len(inputs.weight), device=g.device)
        g = g + margin.log_negative(every_label).to(g.dtype)
    if pairs.example is None:
        loss = F.cross_entropy(g, pairs.label, reduction="none")
    else:
        loss = torch.logsumexp(g, 1)[pairs.example] - g[pairs.example, pairs.label]
    return settings.reduce(loss, pairs)


def _reduced(terms: Terms, settings: SoftmaxSettings) -> Tensor:
    loss = sampled_softmax(terms.positive, terms.negatives, terms.a, terms.b, terms.mask)
    if settings.label_smoothing:
        loss = loss + settings.label_smoothing * _above_mean(terms)
    return settings.reduce(loss, terms.pairs)


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
