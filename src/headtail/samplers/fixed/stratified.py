"""Negatives drawn by several ranks, each from its own labels."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels import Labels
from headtail.core.placement import Placement, Share
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Pairs
from headtail.errors import HeadtailError, PythonName, Setting, check_count
from headtail.samplers.fixed.frequency import Frequency
from headtail.samplers.fixed.inverse import InverseSampler
from headtail.samplers.fixed.log_uniform import LogUniform
from headtail.samplers.fixed.uniform import Uniform
from headtail.samplers.interfaces import FixedSampler
from headtail.samplers.sampler import Claims, Sampler, Step


class Stratum(nn.Module):
    r"""The part of a sampler's draws that one rank makes: $m_r$ of all m negatives, from the rank's
    own labels, in proportion to the sampler's q. So $q_{y'} = \frac{m_r}{m} \cdot q(y' \mid r)$.

    Args:
        sampler: of all labels.
        share: the rank's rows.
        own: how many negatives the rank draws, m_r.
        labels: the rank's part of the sampler's labels, where its counts are held already.
    """

    def __init__(
        self, sampler: InverseSampler, share: Share, own: int, labels: ShardedLabels | None = None
    ) -> None:
        super().__init__()
        self.share = share
        self.log_part = math.log(own / sampler.num_negatives)
        self.sampler = _within(sampler, share, own, labels)

    def pick_places(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """Labels of this rank by their places, with the q that they have among these."""
        nobody = Pairs.of(torch.zeros(0, dtype=torch.int64, device=device), ignore_index=None)
        return self.sampler.pick(Step(nobody, generator=generator))

    def pick(self, generator: torch.Generator | None, device: torch.device) -> Int[Tensor, " m"]:
        """Labels of this rank."""
        return self.share.labels(self.pick_places(generator, device).ids)

    def log_q(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q of own labels; NaN for others."""
        places = self.share.own_places(ids.long())
        return self.log_q_at(places.clamp(min=0)).masked_fill(places < 0, math.nan)

    def log_q_at(self, places: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q of the labels at these places."""
        return self.sampler.log_q(places) + self.log_part


@final
class Stratified(FixedSampler):
    r"""What the ranks of a `ShardedLabelHead` draw together: rank r makes $m_r$ of the m draws,
    from its own labels alone.

    Nothing is biased by it, because $q_{y'} = \frac{m_r}{m} \cdot q(y' \mid r)$ is known, and
    there is less noise: no rank's labels are drawn too often or too rarely. `explain` and `audit`
    take it in place of the sampler.

    Args:
        sampler: `Uniform`, `Frequency` or `LogUniform`.
        ranks: how many there are.
        placement: of the labels' rows; by default that of a table that has not grown.

    >>> sampler = Stratified(Uniform(10, num_negatives=4), ranks=2)
    >>> sampler.draw(torch.tensor([3])).m
    4.0
    """

    def __init__(
        self, sampler: InverseSampler, ranks: int, placement: Placement | None = None
    ) -> None:
        super().__init__()
        check_sampler(sampler)
        self.sampler = sampler
        self.ranks = check_count("ranks", ranks)
        self.placement = Placement((sampler.num_labels,)) if placement is None else placement
        self.num_labels = sampler.num_labels
        shares = [self.placement.share(rank, ranks) for rank in range(ranks)]
        sizes = strata_sizes(sampler.num_negatives, ranks)
        self.strata = nn.ModuleList(
            Stratum(sampler, share, own) for share, own in zip(shares, sizes, strict=True)
        )

    def pick(self, step: Step) -> Draw:
        """What all ranks draw, one after the other."""
        label = step.pairs.label
        ids = [part.pick(step.generator, label.device) for part in self._strata]
        return self.describe(torch.cat(ids), label, self.expected_m())

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log q of each label, from the rank that holds it."""
        return torch.stack([part.log_q(ids) for part in self._strata]).nansum(0)

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, of all ranks."""
        return self.sampler.expected_m()

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """The sum over ranks, which draw independently of each other."""
        parts = []
        for part in self._strata:
            own = part.share.labels().to(term.device)
            parts.append(part.sampler.variance_of_sum(term[own], 0))
        known = [variance for variance in parts if variance is not None]
        return sum(known) if len(known) == len(parts) else None

    def independent(self, batch_size: int | None = None) -> bool:
        """No: the number from each rank is fixed."""
        return self.ranks == 1 and self.sampler.independent()

    def extra_repr(self) -> str:
        """The number of ranks."""
        return f"ranks={self.ranks}"

    @property
    def claims(self) -> Claims:
        """Those of the sampler."""
        return self.sampler.claims

    def for_labels(self, labels: Labels) -> Stratified:
        """The same over the grown label set."""
        added = labels.num_labels - self.num_labels
        grown = check_sampler(self.sampler.for_labels(labels))
        return Stratified(grown, self.ranks, self.placement.grow(added))

    @property
    def _strata(self) -> list[Stratum]:
        return [part for part in self.strata if isinstance(part, Stratum)]


def strata_sizes(num_negatives: int, ranks: int) -> list[int]:
    """How many negatives each rank draws.

    >>> strata_sizes(10, 4)
    [3, 3, 2, 2]
    """
    if num_negatives < ranks:
        raise HeadtailError(
            Setting("num_negatives"),
            f" is {num_negatives}, but there are {ranks} ranks, and each draws from its own "
            "labels. Write ",
            Setting("num_negatives", ranks),
            " or more.",
        )
    return [num_negatives // ranks + (rank < num_negatives % ranks) for rank in range(ranks)]


def check_sampler(sampler: Sampler) -> InverseSampler:
    """Refuse a sampler that ranks cannot share."""
    shared = isinstance(sampler, Uniform | Frequency | LogUniform)
    if not shared or not isinstance(sampler, InverseSampler):
        raise HeadtailError(
            PythonName(sampler.name),
            " cannot draw for a table that ranks share. Use `Uniform`, `Frequency`, `LogUniform`, "
            "`WithinBatch`, `Queue`, or a `Mixture` of them.",
        )
    if sampler.exclude_target:
        raise HeadtailError(
            Setting("exclude_target", True),
            " draws for each example by itself, which ranks cannot share. Drop it: the loss masks "
            "draws that hit the positive.",
        )
    return sampler


@singledispatch
def _within(
    sampler: InverseSampler, share: Share, own: int, labels: ShardedLabels | None
) -> InverseSampler:
    """The sampler within one rank's labels, by their places."""
    check_sampler(sampler)
    raise NotImplementedError(type(sampler))


@_within.register
def _(sampler: Uniform, share: Share, own: int, labels: ShardedLabels | None) -> InverseSampler:
    return Uniform(len(share), own, replacement=sampler.replacement)


@_within.register
def _(sampler: Frequency, share: Share, own: int, labels: ShardedLabels | None) -> InverseSampler:
    counts = _counts(sampler.labels, share) if labels is None else labels.counts
    within = _labels(counts, sampler.labels.smoothing)
    return Frequency(within, own, sampler.power, replacement=sampler.replacement)


@_within.register
def _(sampler: LogUniform, share: Share, own: int, labels: ShardedLabels | None) -> InverseSampler:
    return Frequency(_labels(sampler.mass(share.labels())), own)


def _counts(labels: LabelFrequencies, share: Share) -> Tensor:
    return labels.counts[share.labels().to(labels.counts.device)]


def _labels(counts: Tensor, smoothing: float = 0.0) -> Labels:
    if not smoothing and not bool((counts > 0).any()):
        raise HeadtailError(
            f"A rank holds {len(counts):,} labels, none of which occurs, so it has nothing to "
            "draw. Count with ",
            Setting("smoothing", 1),
            ", or use fewer ranks.",
        )
    return Labels(counts, smoothing)
