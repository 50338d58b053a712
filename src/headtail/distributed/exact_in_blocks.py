"""Losses over all labels where every rank has a part of them, some labels at a time: for measuring.

A rank keeps two numbers for each target, whatever the number of labels: the largest exponent so far
and the sum relative to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.core.draw import Draw
from headtail.core.margins import Margin
from headtail.core.weightings import FromMargin
from headtail.device.parts import PART
from headtail.distributed.joint_batch import JointBatch
from headtail.distributed.own_draws import every_own_label
from headtail.distributed.sharded_loss import (
    OwnRows,
    States,
    own_log_weights,
    own_positives,
    told_to_all,
)
from headtail.losses.decoupled import DecoupledSettings
from headtail.losses.softmax import SoftmaxSettings
from headtail.rows.decay import catch_up

SCORES_AT_ONCE = 2**24
"""Scores that a rank holds at a time."""


class RunningSum:
    r"""$\sum v \cdot e^x$ of each row, over columns that come block by block.

    The largest x so far is factored out, so that nothing overflows.
    """

    def __init__(self) -> None:
        self._highest: Tensor | None = None
        self._total: Tensor | float = 0.0

    def add(
        self, exponents: Float[Tensor, "r k"], values: Float[Tensor, "p k"] | None = None
    ) -> None:
        """Add a block.

        Args:
            exponents: x, with one row for each sum or one for all of them.
            values: v; None for 1.
        """
        none = exponents.new_full((len(exponents),), -torch.inf)
        before = none if self._highest is None else self._highest
        here = exponents.amax(1) if exponents.shape[1] else none
        highest = torch.maximum(before, here)
        shift = _finite(highest)
        terms = (exponents - shift[:, None]).exp_()
        if values is not None:
            terms = terms.to(values.dtype) * values
        self._total = self._total * (before - shift).double().exp() + terms.sum(1).double()
        self._highest = highest

    def of_all(self, ranks: Ranks) -> tuple[Float64[Tensor, " p"], Float64[Tensor, " r"]]:
        """The sums over the columns of all ranks: factors s and largest exponents h, for s · e^h.

        Every rank must call it.
        """
        assert self._highest is not None, "a rank without labels adds a block without columns"
        own = self._highest.double()
        highest = own.clone()
        ranks.reduce_(highest, highest=True)
        highest = _finite(highest)
        total = self._total * (own - highest).exp()
        ranks.reduce_(total)
        return total, highest


class Block(NamedTuple):
    """Some labels of this rank, against the targets of all ranks.

    Attributes:
        logits: `[P, k]` of these labels.
        b: `[k]` or `[P, k]` their log-weights.
        mask: `[P, k]` those that do not count.
    """

    logits: Float[Tensor, "P k"]
    b: Float64[Tensor, "*P k"]
    mask: Bool[Tensor, "P k"]


@torch.no_grad()
def exact_loss_in_blocks(batch: JointBatch, rows: OwnRows, margin: Margin) -> Float64[Tensor, ""]:
    """The reduced loss over all labels of all ranks' batches, the same number on each of them.

    Args:
        batch: of all ranks.
        rows: the tables of this rank.
        margin: ρ.
    """
    settings = batch.settings
    weighting = FromMargin(margin)
    if isinstance(settings, DecoupledSettings):
        loss = _decoupled(batch, rows, weighting, settings)
    else:
        assert isinstance(settings, SoftmaxSettings)
        assert not settings.label_smoothing, "nothing that is measured has any"
        loss = _softmax(batch, rows, weighting)
    return settings.reduce(loss, batch.pairs)


def _softmax(batch: JointBatch, rows: OwnRows, weighting: FromMargin) -> Float64[Tensor, " P"]:
    """log(1 + e^(a − f_y) · Σ e^(f_y' + b))."""
    running = RunningSum()
    for block in _blocks(batch, rows, weighting):
        weighed = block.logits + block.b.to(block.logits.dtype)
        running.add(weighed.masked_fill_(block.mask, -torch.inf))
    positive, a = _positives(batch, rows, weighting)
    total, highest = running.of_all(batch.ranks)
    gap = total.log() + highest + (a - positive)
    return torch.logaddexp(torch.zeros_like(gap), gap)


def _decoupled(
    batch: JointBatch, rows: OwnRows, weighting: FromMargin, settings: DecoupledSettings
) -> Float64[Tensor, " P"]:
    """φ(f_y) + e^a · Σ e^b · ϕ(−f_y')."""
    running = RunningSum()
    for block in _blocks(batch, rows, weighting):
        pushed = settings.piece.negative(-block.logits).masked_fill(block.mask, 0.0)
        running.add(torch.atleast_2d(block.b), pushed)
    positive, a = _positives(batch, rows, weighting)
    total, highest = running.of_all(batch.ranks)
    return settings.piece.positive(positive) + (a + highest).exp() * total


def _blocks(batch: JointBatch, rows: OwnRows, weighting: FromMargin) -> Iterator[Block]:
    """All labels of this rank; where it has none, a block without columns."""
    tables = [rows.weight] if rows.bias is None else [rows.weight, rows.bias]
    for table in tables:
        catch_up(table)
    states = States.of(batch)
    number = len(rows.weight)
    most = _labels_at_once(batch, rows)
    for start in range(0, max(1, number), most):
        places = slice(start, min(start + most, number))
        bias = None if rows.bias is None else rows.bias[places].squeeze(-1)
        drawn = _drawn(batch, rows, places)
        _, b = own_log_weights(weighting, drawn, batch)
        mask = batch.settings.masks(batch.pairs, drawn, weighting)
        yield Block(states.logits(rows.weight[places], bias), b, mask)


def _positives(
    batch: JointBatch, rows: OwnRows, weighting: FromMargin
) -> tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]:
    """Logits and log-weights of all positives."""
    own, places = own_positives(batch, rows.share)
    f_y = States.of(batch).logits_of_own(own, *rows.look_up(places))
    a, _ = own_log_weights(weighting, _drawn(batch, rows, slice(0, 0)), batch)
    return told_to_all(batch, rows.share, own, (f_y, a))


def _drawn(batch: JointBatch, rows: OwnRows, places: slice) -> Draw:
    """The labels at these places, each once."""
    num_labels = rows.share.placement.num_labels
    return every_own_label(rows.share, num_labels, batch.hidden.device, places)


def _labels_at_once(batch: JointBatch, rows: OwnRows) -> int:
    """How many, so that neither their scores nor copies of their rows take much memory."""
    of_scores = SCORES_AT_ONCE // max(1, len(batch.pairs.label))
    of_rows = PART // (rows.weight.shape[1] * rows.weight.element_size())
    return max(1, min(of_scores, of_rows))


def _finite(highest: Tensor) -> Tensor:
    """0 where there was no term: −∞ − (−∞) would not be a number."""
    return highest.masked_fill(highest == -torch.inf, 0.0)
