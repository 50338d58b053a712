"""Equations 5 and 6 where every rank has a part of the labels.

A rank scores its own positives and negatives. What travels is a number or two for each target: the
positive's logit and log-weight from the rank that holds it, and each rank's part of the sum over
negatives. From these every rank computes the same loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from headtail.collectives.shared import for_all, log_sum_exp_of, sum_of
from headtail.core.draw import Draw
from headtail.core.placement import Share
from headtail.core.weightings import FromMargin, Importance, Weighting, log_weights
from headtail.distributed.joint_batch import JointBatch
from headtail.losses import ExactLoss, Loss, SampledLoss
from headtail.losses.decoupled import DecoupledSettings
from headtail.losses.inputs import directions
from headtail.losses.softmax import SoftmaxSettings
from headtail.rows.decay import catch_up
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The tables of one rank.

    Attributes:
        weight: `[n, d]` rows of its labels.
        bias: `[n, 1]`, or None.
        share: which rows they are.
        sparse: whether gradients hold only the rows in use.
    """

    weight: Float[Tensor, "n d"]
    bias: Float[Tensor, "n 1"] | None
    share: Share
    sparse: bool

    def look_up(self, places: Int64[Tensor, " k"]) -> tuple[Tensor, Tensor | None]:
        """Rows and biases at these places, with their weight decay."""
        tables = [self.weight] if self.bias is None else [self.weight, self.bias]
        for table in tables:
            catch_up(table, places)
        weight = F.embedding(places, self.weight, sparse=self.sparse)
        if self.bias is None:
            return weight, None
        return weight, F.embedding(places, self.bias, sparse=self.sparse).squeeze(-1)


@dataclass(frozen=True, eq=False)
class OwnTerms:
    """What one rank knows of the equations, and what it was told about positives.

    Attributes:
        positive: `[P]` logits of all positives, in float64 as
        a: `[P]` their log-weights.
        negatives: `[P, m]` logits of own negatives.
        b: `[m]` or `[P, m]` their log-weights.
        mask: `[P, m]` those that do not count.
        draw: the own negatives.
    """

    positive: Float64[Tensor, " P"]
    a: Float64[Tensor, " P"]
    negatives: Float[Tensor, "P m"]
    b: Float[Tensor, "*P m"]
    mask: Bool[Tensor, "P m"]
    draw: Draw


def sharded_loss(batch: JointBatch, rows: OwnRows, draw: Draw, weighting: Weighting) -> Tensor:
    """The reduced loss of all ranks' batches, the same number on each of them.

    Args:
        batch: of all ranks.
        rows: the tables of this rank.
        draw: this rank's negatives.
        weighting: their weights.
    """
    terms = _terms(batch, rows, draw, weighting)
    settings = batch.settings
    if isinstance(settings, DecoupledSettings):
        loss = _decoupled(terms, settings, batch)
    else:
        assert isinstance(settings, SoftmaxSettings)
        loss = _softmax(terms, settings, batch, rows.share.placement.num_labels)
    # Numbers of each target are cheap: in float64, the loss has the digits that a kernel's has.
    return settings.reduce(loss.double(), batch.pairs).to(terms.negatives.dtype)


def weighting_of(loss: Loss) -> Any:
    """The weighting of negatives, and for an exact loss of all labels."""
    if isinstance(loss, SampledLoss):
        return loss.weighting
    assert isinstance(loss, ExactLoss)
    return FromMargin(loss.margin)


def _softmax(
    terms: OwnTerms, settings: SoftmaxSettings, batch: JointBatch, num_labels: int
) -> Tensor:
    """log(1 + e^(a − f_y) · Σ e^(f_y' + b)): a sum over ranks of sums over their negatives."""
    b = terms.b.to(terms.negatives.dtype)
    weighed = (terms.negatives + b).masked_fill(terms.mask, -torch.inf)
    gap = log_sum_exp_of(weighed, batch.ranks) + (terms.a - terms.positive)
    loss = torch.logaddexp(torch.zeros_like(gap), gap)
    if settings.label_smoothing:
        above = _above_mean(terms, batch) / num_labels
        loss = loss + settings.label_smoothing * above
    return loss


def _above_mean(terms: OwnTerms, batch: JointBatch) -> Tensor:
    """Σ (f_y − f_c) over all labels c, estimated from all ranks' draws with importance weights."""
    a, b = Importance().offsets(terms.draw, batch.pairs.label)
    weights = (a[:, None] + b).masked_fill(terms.mask, 0.0).to(terms.negatives.dtype).exp()
    weights = weights.masked_fill(terms.mask, 0.0)
    scores = (weights * terms.negatives.masked_fill(terms.mask, 0.0)).sum(1)
    sums = sum_of(torch.stack([weights.sum(1), scores]), batch.ranks)
    return sums[0] * terms.positive - sums[1]


def _decoupled(terms: OwnTerms, settings: DecoupledSettings, batch: JointBatch) -> Tensor:
    """φ(f_y) + Σ w · ϕ(−f_y'): a sum over ranks of sums over their negatives."""
    dtype = terms.negatives.dtype
    # w = e^(a + highest) · e^(b − highest): rounded after the exponential, which would make much of
    # the last digits of its argument.
    highest = terms.b.new_zeros(1)
    if terms.b.shape[-1]:
        highest = terms.b.masked_fill(terms.b == -torch.inf, 0.0).amax(-1)
    weights = (terms.b - highest[..., None]).exp().to(dtype)
    pushed = (weights * settings.piece.negative(-terms.negatives)).masked_fill(terms.mask, 0.0)
    part = (terms.a + highest).exp().to(dtype) * pushed.sum(1)
    return settings.piece.positive(terms.positive.to(dtype)) + sum_of(part, batch.ranks)


def _terms(batch: JointBatch, rows: OwnRows, draw: Draw, weighting: Weighting) -> OwnTerms:
    pairs = batch.pairs
    own, places = own_positives(batch, rows.share)
    drawn = rows.share.own_places(draw.ids)
    split = [len(own), len(drawn)]
    weight, bias = rows.look_up(torch.cat([places, drawn]))
    positive, negatives = weight.split(split)
    b_y, b_n = (None, None) if bias is None else bias.split(split)
    states = States.of(batch)
    f_y = states.logits_of_own(own, positive, b_y)
    f = states.logits(negatives, b_n)
    a, b = own_log_weights(weighting, draw, batch)
    known, a = told_to_all(batch, rows.share, own, (f_y, a))
    mask = batch.settings.masks(pairs, draw, weighting)
    return OwnTerms(known, a, f, b, mask, draw)


@dataclass(frozen=True, eq=False)
class States:
    """The hidden states of all ranks, as labels are scored against them.

    Attributes:
        hidden: `[B, d]`, of length 1 where scores are cosines.
        temperature: what scores are divided by; its gradient is that of all ranks.
        batch: of all ranks.
    """

    hidden: Float[Tensor, "B d"]
    temperature: float | Tensor
    batch: JointBatch

    @classmethod
    def of(cls, batch: JointBatch) -> States:
        """Of a batch."""
        settings = batch.settings
        hidden = directions(batch.hidden) if settings.score == "cosine" else batch.hidden
        temperature: Any = settings.temperature
        if isinstance(temperature, Tensor):
            temperature = for_all(temperature, batch.ranks)
        return cls(hidden, temperature, batch)

    def logits_of_own(
        self, own: Int64[Tensor, " k"], rows: Float[Tensor, "k d"], bias: Tensor | None
    ) -> Float[Tensor, " k"]:
        """Logits of the positives of this rank, with the margin on their scores.

        Args:
            own: which of the pairs they are.
            rows: theirs.
            bias: `[k]` theirs, or None.
        """
        settings = self.batch.settings
        if settings.score == "cosine":
            rows = directions(rows)
        hidden = self.batch.pairs.rows(self.hidden)[own]
        f_y = (widened(hidden) * widened(rows)).sum(-1)
        if settings.score_margin is not None:
            f_y = settings.score_margin.moved(f_y)
        if bias is not None:
            f_y = f_y + bias
        return f_y / self.temperature

    def logits(self, rows: Float[Tensor, "m d"], bias: Tensor | None) -> Float[Tensor, "P m"]:
        """Logits of labels for each pair.

        Args:
            rows: of the labels.
            bias: `[m]` theirs, or None.
        """
        if self.batch.settings.score == "cosine":
            rows = directions(rows)
        f = widened(self.batch.pairs.rows(self.hidden @ rows.T))
        if bias is not None:
            f = f + bias
        return f / self.temperature


def own_positives(batch: JointBatch, share: Share) -> tuple[Int64[Tensor, " k"], Tensor]:
    """Which of the pairs have labels of this rank, and the places of these."""
    places = share.own_places(batch.pairs.label)
    own = ((places >= 0) & ~batch.pairs.ignored).nonzero().squeeze(1)
    return own, places[own]


def told_to_all(
    batch: JointBatch, share: Share, own: Int64[Tensor, " k"], known: tuple[Tensor, Tensor]
) -> tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]:
    """Logits and log-weights of all positives, each from the rank that holds it.

    Args:
        batch: of all ranks.
        share: the rows of this rank.
        own: which of the pairs have labels of this rank.
        known: `[k]` logits of these and `[P]` log-weights, which are looked up for all pairs.
    """
    f_y, a = known
    numbers = torch.stack([f_y.double(), a[own]])
    label = batch.pairs.label
    everyone = numbers.new_zeros(2, len(label)).index_copy(1, own, numbers)
    positive, a = sum_of(everyone, batch.ranks)
    # A CPU has refused labels that do not exist; on a GPU they make the loss NaN.
    exists = (label >= 0) & (label < share.placement.num_labels)
    return positive.masked_fill(~exists & ~batch.pairs.ignored, torch.nan), a


def own_log_weights(weighting: Weighting, draw: Draw, batch: JointBatch) -> tuple[Tensor, Tensor]:
    """(a, b): a of own positives, b of own negatives."""
    # Labels of targets that do not count are none, and are looked up nowhere.
    counted = batch.pairs.label.masked_fill(batch.pairs.ignored, 0)
    return log_weights(weighting, draw, counted)
