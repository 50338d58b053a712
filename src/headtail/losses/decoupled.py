"""Sampled decoupled losses (the paper's equation 6), and their exact all-label twins."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Unpack

from jaxtyping import Bool, Float
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.margins import Margin, Separable, Unit, check_margin
from headtail.core.pieces import Piece, logistic
from headtail.core.targets import Target
from headtail.core.weightings import Weighting
from headtail.errors import HeadtailError, check_kind
from headtail.kernels.dispatch import exact_decoupled_kernels
from headtail.losses.chunked import plan_of
from headtail.losses.fused import fused_loss
from headtail.losses.inputs import Inputs, check_draw
from headtail.losses.options import Options, Settings
from headtail.losses.terms import Terms, exact_factors, exact_terms, given_terms, table_terms
from headtail.losses.whole_scores import (
    Passes,
    as_kernels_read,
    log_rho_of_negatives,
    loss_of_passes,
)


@dataclass(frozen=True, eq=False)
class DecoupledSettings(Settings):
    """Options of the decoupled losses: those of all losses, and the piece."""

    own: ClassVar[tuple[str, ...]] = ("piece",)
    # No default: `torch.compile` cannot wrap a default that is an object of ours.
    piece: Piece = field(kw_only=True)

    def __post_init__(self) -> None:
        check_kind("piece", self.piece, Piece, "hinge")
        super().__post_init__()
        check_score(self.piece, self.score)
        if self.score_margin is not None:
            raise HeadtailError(
                "`score_margin` is for softmax losses, which compare the positive with the "
                "negatives. Drop it, or use `SampledSoftmaxLoss` or `SoftmaxLoss`."
            )


def check_score(piece: Piece, score: str) -> None:
    """Refuse dot products where a piece is made for cosines."""
    if piece.cosine and score != "cosine":
        raise HeadtailError(f'`piece={piece.name}` works on cosines: write `score="cosine"`.')


def sampled_decoupled(
    positive: Float[Tensor, " b"],
    negatives: Float[Tensor, "b m"],
    a: Float[Tensor, " b"],
    b: Float[Tensor, "*b m"],
    mask: Bool[Tensor, "b m"],
    piece: Piece = logistic,
) -> Float[Tensor, " b"]:
    r"""Equation 6, with weights $w_{yy'} = e^{a(y) + b(y')}$:

    $$\ell(y, f; \mathscr{N}, w) = \phi(f_y) + \sum_{y' \in \mathscr{N}} w_{yy'}\,
    \varphi(-f_{y'}).$$

    Args:
        positive: `[b]` logits f_y.
        negatives: `[b, m]` logits f_y'.
        a: `[b]` and
        b: `[m]` or `[b, m]`: the log-weights.
        mask: `[b, m]` draws that do not count.
        piece: φ for the positive and ϕ for negatives.

    >>> from headtail.functional import hinge
    >>> zero, none = torch.zeros(1), torch.zeros(1, 3, dtype=torch.bool)
    >>> sampled_decoupled(zero, torch.zeros(1, 3), zero, torch.zeros(3), none, hinge)
    tensor([4.])
    """
    a = a.to(negatives.dtype)
    b = b.to(negatives.dtype)
    # A masked weight may be infinite, and 0 · inf is not a number: the mask selects, it never
    # multiplies.
    weights = (a[:, None] + b).masked_fill(mask, 0.0).exp()
    terms = weights * piece.negative(-negatives)
    return piece.positive(positive) + terms.masked_fill(mask, 0.0).sum(1)


def sampled_decoupled_loss(
    input: Float[Tensor, "*b d"],
    weight: Float[Tensor, "L d"],
    target: Target,
    draw: Draw,
    weighting: Weighting,
    piece: Piece = logistic,
    *,
    bias: Tensor | None = None,
    sparse: bool = False,
    **options: Unpack[Options],
) -> Tensor:
    """A sampled decoupled loss against a table of label embeddings; leans as the sampler and
    `weighting` decide.

    Args:
        input: `[b, d]` hidden states, or `[B, T, d]` with targets `[B, T]`.
        weight: `[L, d]` label table.
        target: as in `sampled_softmax_loss`.
        draw: the negatives.
        weighting: their weights.
        piece: `logistic`, `hinge`, `squared_hinge`, `contrastive()` or your own.
        bias: `[L]` label biases; as `[L, 1]` they can have a row-sparse gradient too.
        sparse: give `weight` a row-sparse gradient.
        **options: see `Options`.

    >>> from headtail import Importance, Uniform
    >>> from headtail.functional import contrastive
    >>> hidden, table, target = torch.randn(4, 8), torch.randn(100, 8), torch.tensor([5, 0, 99, 5])
    >>> draw = Uniform(100, num_negatives=20).draw(target)
    >>> loss = sampled_decoupled_loss(
    ...     hidden, table, target, draw, Importance(), contrastive(), score="cosine")
    """
    settings = DecoupledSettings.of({**options, "piece": piece})
    inputs = Inputs.of(input, weight, bias, target, settings.ignore_index, sparse)
    check_draw(draw, weighting, inputs.pairs, len(weight))
    return decoupled_of_draw(inputs, draw, weighting, settings)


def decoupled_of_draw(
    inputs: Inputs, draw: Draw, weighting: Weighting, settings: DecoupledSettings
) -> Tensor:
    """The reduced loss of equation 6 of a draw that is checked: by a kernel if there is one for
    these inputs and this piece, else as it is written above.
    """
    loss = None
    if settings.piece.code is not None:
        loss = fused_loss(inputs, draw, weighting, settings, settings.piece.code)
    if loss is None:
        loss = _reduced(table_terms(inputs, draw, weighting, settings), settings)
    return loss


def two_tower_decoupled_loss(
    input: Float[Tensor, "b d"],
    positive: Float[Tensor, "p d"],
    negatives: Float[Tensor, "m d"] | Float[Tensor, "p m d"],
    target: Target,
    draw: Draw,
    weighting: Weighting,
    piece: Piece = logistic,
    **options: Unpack[Options],
) -> Tensor:
    """A sampled decoupled loss where an item tower made the embeddings; arguments as in
    `two_tower_softmax_loss`.

    >>> from headtail import Constant, Labels, WithinBatch
    >>> from headtail.functional import hinge
    >>> labels, target = Labels.from_counts([4, 2, 1]), torch.tensor([0, 2, 0])
    >>> queries, items = torch.randn(3, 8), torch.randn(3, 8)
    >>> draw = WithinBatch(labels).draw(target)
    >>> loss = two_tower_decoupled_loss(queries, items, items, target, draw, Constant(), hinge)
    """
    settings = DecoupledSettings.of({**options, "piece": piece})
    terms = given_terms(input, positive, negatives, target, draw, weighting, None, settings)
    return _reduced(terms, settings)


def decoupled_loss(
    input: Float[Tensor, "*b d"],
    weight: Float[Tensor, "L d"],
    target: Target,
    margin: Margin | None = None,
    piece: Piece = logistic,
    *,
    bias: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    r"""The exact decoupled loss over all labels, $\phi(f_y) + \sum_{y' \ne y} \rho_{yy'}\,
    \varphi(-f_{y'})$.

    Args:
        input: `[b, d]` hidden states, or `[B, T, d]` with targets `[B, T]`.
        weight: `[L, d]` label table.
        target: as in `sampled_softmax_loss`.
        margin: ρ; `Unit()` if None, which leans neither to head nor tail.
        piece: φ for the positive and ϕ for negatives.
        bias: `[L]` label biases.
        **options: see `Options`.

    >>> hidden, table, target = torch.randn(4, 8), torch.randn(10, 8), torch.tensor([5, 0, 9, 5])
    >>> exact = torch.nn.functional.binary_cross_entropy_with_logits(
    ...     hidden @ table.T, torch.nn.functional.one_hot(target, 10).float(), reduction="sum")
    >>> torch.allclose(decoupled_loss(hidden, table, target, reduction="sum"), exact)
    True
    """
    settings = DecoupledSettings.of({**options, "piece": piece})
    inputs = Inputs.of(input, weight, bias, target, settings.ignore_index)
    return exact_decoupled(inputs, Unit() if margin is None else margin, settings)


def exact_decoupled(inputs: Inputs, margin: Margin, settings: DecoupledSettings) -> Tensor:
    """The reduced loss over all labels."""
    loss = _by_kernels(inputs, margin, settings)
    if loss is None:
        loss = _reduced(exact_terms(inputs, margin, settings), settings)
    return loss


def _by_kernels(inputs: Inputs, margin: Margin, settings: DecoupledSettings) -> Tensor | None:
    """The same on a GPU with two passes over the scores; None where that is not possible."""
    pairs = inputs.pairs
    code = settings.piece.code
    everything_counts = settings.collisions in (None, "target") and settings.known_positives is None
    if code is None or not (everything_counts and isinstance(margin, Separable)):
        return None
    plan = plan_of(inputs, len(pairs.label))
    one_each = pairs.example is None
    if plan is None or not (plan.whole and one_each) or settings.weighs_in_backward:
        return None
    check_margin(margin, len(inputs.weight), other="`weight`")
    hidden, weight, bias = exact_factors(inputs, settings)
    b = log_rho_of_negatives(margin, weight)
    a = None if margin.one_for_positives else as_kernels_read(margin.log_positive(pairs.label))
    if any(log_rho is not None and log_rho.requires_grad for log_rho in (a, b)):
        return None  # a margin of your own that learns
    kernels = exact_decoupled_kernels(hidden.device, plan.dtype)
    number, margin_of_piece = code
    given = {"a": a, "b": b, "piece": number, "margin": margin_of_piece}
    passes = Passes(
        partial(kernels.decoupled, **given), partial(kernels.decoupled_gradient_, **given)
    )
    return loss_of_passes(hidden, weight, bias, pairs, settings, plan.dtype, passes)


def _reduced(terms: Terms, settings: DecoupledSettings) -> Tensor:
    loss = sampled_decoupled(
        terms.positive, terms.negatives, terms.a, terms.b, terms.mask, settings.piece
    )
    return settings.reduce(loss, terms.pairs)
