"""The loss that ranks optimise together, as far as each knows it: for its own labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.collectives.gather import gather_rows
from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.margins import Margin, Separable
from headtail.core.score_margins import scaled
from headtail.core.slices import NAMES, slice_of_counts
from headtail.core.weightings import FromMargin
from headtail.distributed.own_draws import OwnPart, Together
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.errors import HeadtailError
from headtail.implicit.implied import implied_margin_of
from headtail.losses import SampledLoss
from headtail.samplers import FixedSampler, Sampler
from headtail.samplers.fixed.mixture import Mixture, mean_of

_CPU = torch.device("cpu")


@final
@dataclass(frozen=True, eq=False)
class OwnMargin(Separable):
    r"""$\rho_{yy'} = m \cdot q_{y'} \cdot w_{yy'}$ with the q that ranks draw with, for the labels
    of one rank. What it returns for those of others has no meaning.

    Attributes:
        part: the sampler as this rank sees it.
        loss: of all ranks.
        batch_size: B, of all ranks.
    """

    part: OwnPart
    loss: SampledLoss
    batch_size: int

    def log_positive(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """The part of the weights that the positive decides."""
        return self.loss.weighting.offsets(self._draw(ids), ids)[0]

    def log_negative(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """The other part, with m·q; −inf for labels that are never drawn."""
        draw = self._draw(ids)
        b = self.loss.weighting.offsets(draw, ids)[1]
        return torch.where(draw.log_q > -math.inf, b + draw.log_m + draw.log_q, -math.inf)

    @property
    def num_labels(self) -> int:
        """L, of all ranks."""
        return self.loss.sampler.num_labels

    def for_labels(self, labels: Labels) -> Margin:
        """Refused: it belongs to a head as it is."""
        raise HeadtailError(
            "Make the margin of a grown head again: `own_margin(head, batch_size)`."
        )

    def _draw(self, ids: Tensor) -> Draw:
        log_q = _log_q(self.part, self.loss.sampler, ids, self.batch_size)
        return Draw(ids, log_q, log_q, _expected_m(self.loss.sampler, self.batch_size))


def own_margin(head: ShardedLabelHead, batch_size: int) -> Margin:
    """The margin that a head's loss optimises, for the labels of this rank.

    Args:
        head: the table.
        batch_size: B, of all ranks, which decides what within-batch schemes optimise.
    """
    loss = head.loss
    weighting = getattr(loss, "weighting", None)
    splits = not isinstance(weighting, FromMargin) or isinstance(weighting.margin, Separable)
    if not isinstance(loss, SampledLoss) or not splits:
        return implied_margin_of(loss, batch_size)
    assert head.part is not None, "its loss is sampled"
    margin = OwnMargin(head.part, loss, batch_size)
    by_score = loss.settings.score_margin
    if by_score is None or by_score.constant is None:
        return margin
    return scaled(margin, by_score.constant / float(loss.temperature))


def lean_of_ranks(head: ShardedLabelHead) -> float:
    """`headtail.implicit.implied.lean_of` a head's loss. Every rank must call it.

    What travels is how many labels have each count, and a few sums: nothing else decides it.
    """
    margin = own_margin(head, batch_size=2)
    assert isinstance(margin, Separable), "schemes have such margins"
    frequent, rare = _median_counts(head)
    if frequent == rare:
        return 0.0
    counts = head.labels.counts.cpu()
    every = head.share.labels()
    sums = []
    for count in (frequent, rare):
        ids = every[counts == count]
        parts = [margin.log_positive(ids).sum(), margin.log_negative(ids).sum()]
        sums += [*map(float, parts), float(len(ids))]
    place = head.ranks.meeting_place(_CPU)
    total = head.ranks.gather(torch.tensor(sums, dtype=torch.float64, device=place)).sum(0).tolist()
    of_head, of_tail = ((p / number, n / number) for p, n, number in (total[:3], total[3:]))
    forward = of_tail[0] + of_head[1]
    backward = of_head[0] + of_tail[1]
    # Labels that never push each other down lean nowhere: −inf − (−inf) is not a number.
    return 0.0 if forward == backward else forward - backward


def _median_counts(head: ShardedLabelHead) -> tuple[float, float]:
    """The counts of the median label of the head and of that of the tail, of all ranks."""
    ranks = head.ranks
    own = torch.stack(head.labels.counts.cpu().unique(return_counts=True), 1)
    sizes = [size for (size,) in ranks.numbers([len(own)], _CPU)]
    every = gather_rows(own.to(ranks.meeting_place(_CPU)), ranks, sizes).cpu()
    values, index = every[:, 0].unique(return_inverse=True)
    numbers = torch.zeros_like(values).index_add_(0, index, every[:, 1])
    of_value = slice_of_counts(values, numbers)
    seen = numbers.masked_fill(values == 0, 0)
    medians = []
    for name, otherwise in (("head", values[-1]), ("tail", values[0])):
        inside = seen.masked_fill(of_value != NAMES.index(name), 0)
        middle = (inside.sum() - 1) // 2
        at = int(torch.searchsorted(inside.cumsum(0), middle, right=True))
        medians.append(float(otherwise if middle < 0 else values[at]))
    return medians[0], medians[1]


def _log_q(part: OwnPart, sampler: Sampler, ids: Tensor, batch_size: int) -> Tensor:
    """log q of own labels in batches of this size."""
    if not isinstance(part, Together):
        return part.log_q(ids)
    assert isinstance(sampler, Mixture)
    inner = zip(part._parts, sampler.samplers, strict=True)
    log_q = [_log_q(one, whole, ids, batch_size) for one, whole in inner]
    return mean_of(log_q, [_expected_m(whole, batch_size) for whole in sampler.samplers])


def _expected_m(sampler: Sampler, batch_size: int) -> float:
    assert isinstance(sampler, FixedSampler), "ranks share no others"
    return float(sampler.expected_m(batch_size))
