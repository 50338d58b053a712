"""The negatives that one rank scores: those of its own labels."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.lookup import Same
from headtail.core.placement import Share
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Pairs
from headtail.core.weightings import Weighting
from headtail.distributed.joint_batch import JointBatch
from headtail.distributed.own_labels import Counted, labels_of
from headtail.distributed.together import everywhere
from headtail.errors import HeadtailError
from headtail.losses.inputs import check_draw
from headtail.samplers.fixed.mixture import Mixture, mean_of
from headtail.samplers.fixed.queue import Queue
from headtail.samplers.fixed.stratified import Stratum, check_sampler, strata_sizes
from headtail.samplers.fixed.within_batch import WithinBatch, require_seen
from headtail.samplers.sampler import Sampler, Step


class FixedStep(NamedTuple):
    """What draws of a fixed size need.

    Attributes:
        generator: this rank's own.
        needs_target_q: whether weights look at log q of the positives.
    """

    generator: torch.Generator
    needs_target_q: bool


class OwnPart(nn.Module):
    """A sampler as one rank sees it: the draws that are labels of its own."""

    @abstractmethod
    def pick(self, batch: JointBatch) -> Draw:
        """Own labels with the q and m of all ranks' draws together; log q of other ranks' targets
        is NaN.
        """

    @abstractmethod
    def log_q(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q of own labels; NaN for others."""

    def remember(self, batch: JointBatch) -> None:
        """Add a batch to the memory, where there is one."""

    @property
    def may_refuse(self) -> bool:
        """Whether a batch may hold labels that the sampler refuses, because they never occur. Only
        the rank that has their counts knows.
        """
        return False

    def check(self, batch: JointBatch) -> None:
        """Refuse a batch that `remember` would refuse."""

    def most_draws(self, targets: int) -> int | None:
        """How many draws `pick_fixed` returns for so many targets of all ranks; None where their
        number is not fixed, or ranks have to agree on them.
        """
        return None

    def pick_fixed(
        self, pairs: Pairs, positive: Int64[Tensor, " p"], step: FixedStep
    ) -> tuple[Draw, Int64[Tensor, " m"]]:
        """Draws whose number follows from that of the targets, and does not keep the host waiting,
        and the place of each. Other ranks' labels among them are void, and have the place −1; log q
        of their targets has no meaning.

        Args:
            pairs: the targets of all ranks.
            positive: the place of each target, −1 for those of other ranks.
            step: what they need.
        """
        raise NotImplementedError


class FromStratum(OwnPart):
    """Draws that each rank makes by itself.

    Args:
        sampler: of all labels.
        share: the rank's rows.
        rank: its number.
        ranks: how many there are.
        labels: the rank's part of the sampler's labels.
    """

    def __init__(
        self, sampler: Sampler, share: Share, rank: int, ranks: int, labels: ShardedLabels
    ) -> None:
        super().__init__()
        checked = check_sampler(sampler)
        self.m = float(checked.num_negatives)
        self.own = strata_sizes(checked.num_negatives, ranks)[rank]
        self.stratum = Stratum(checked, share, self.own, labels)

    def pick(self, batch: JointBatch) -> Draw:
        """This rank's draws."""
        return self._drawn(batch.pairs.label, batch.own_random)

    def most_draws(self, targets: int) -> int:
        """Always as many."""
        return self.own

    def pick_fixed(
        self, pairs: Pairs, positive: Tensor, step: FixedStep
    ) -> tuple[Draw, Int64[Tensor, " m"]]:
        """This rank's draws."""
        stratum = self.stratum
        inside = stratum.pick_places(step.generator, positive.device)
        ids = stratum.share.labels(inside.ids)
        if inside.same_log_q is not None:
            log_q = inside.same_log_q + stratum.log_part
            same = Same(log_q, ids), Same(log_q, positive)
            drawn = Draw(ids, *same, self.m)  # pyright: ignore[reportArgumentType]
            return drawn, inside.ids
        of_targets = self.log_q_at(positive.clamp(min=0)) if step.needs_target_q else None
        return Draw(ids, inside.log_q + stratum.log_part, of_targets, self.m), inside.ids

    def _drawn(self, label: Tensor, generator: torch.Generator) -> Draw:
        ids = self.stratum.pick(generator, label.device)
        return Draw(ids, self.log_q(ids), self.log_q(label), self.m)

    def log_q_at(self, places: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q of the labels at these places."""
        return self.stratum.log_q_at(places)

    def log_q(self, ids: Tensor) -> Tensor:
        """That of the stratum."""
        return self.stratum.log_q(ids)


class FromBatches(OwnPart):
    """Labels of the joint batch, or of past ones: every rank knows them all, and takes its own.

    Args:
        sampler: `WithinBatch` or `Queue`, over the rank's part of its labels.
        share: the rank's rows.
    """

    def __init__(self, sampler: WithinBatch | Queue, share: Share) -> None:
        super().__init__()
        self.sampler = sampler
        self.share = share

    def pick(self, batch: JointBatch) -> Draw:
        """What one process would draw, without the labels of other ranks."""
        # All ranks draw alike, so that together they take what one process would.
        draw = self.sampler.pick(Step(batch.pairs, generator=batch.shared_random))
        return own_part(draw, self.share)

    def most_draws(self, targets: int) -> int | None:
        """The whole joint batch: of a part, ranks would have to know the same."""
        whole = isinstance(self.sampler, WithinBatch) and self.sampler.takes_all(targets)
        return targets if whole else None

    def pick_fixed(
        self, pairs: Pairs, positive: Tensor, step: FixedStep
    ) -> tuple[Draw, Int64[Tensor, " m"]]:
        """All labels of the joint batch."""
        draw = self.sampler.pick(Step(pairs, fixed_size=True))
        others = positive < 0
        return replace(draw, void=others if draw.void is None else draw.void | others), positive

    def log_q(self, ids: Tensor) -> Tensor:
        """The frequency of own labels."""
        return self.sampler.log_q(ids)

    def remember(self, batch: JointBatch) -> None:
        """Put the joint batch into a queue."""
        self.sampler.remember(Step(batch.pairs))

    @property
    def may_refuse(self) -> bool:
        """If some label never occurs."""
        return self.sampler.labels.never_seen > 0

    def check(self, batch: JointBatch) -> None:
        """Refuse labels that never occur before any rank has them in its queue."""
        if isinstance(self.sampler, Queue):
            label = batch.pairs.label[~batch.pairs.ignored]
            require_seen(label, self.log_q(label), self.sampler.name)


class Together(OwnPart):
    """The parts of a mixture.

    Args:
        parts: its samplers as this rank sees them.
    """

    def __init__(self, parts: list[OwnPart]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def pick(self, batch: JointBatch) -> Draw:
        """The draws of all parts, each with the q of their sum."""
        return self._joined([part.pick(batch) for part in self._parts], batch.pairs.label)

    def most_draws(self, targets: int) -> int | None:
        """Those of all parts. A batch's share of m is a number on the device, where other parts'
        are on the host: such mixtures have none.
        """
        if not all(isinstance(part, FromStratum) for part in self._parts):
            return None
        return sum(part.most_draws(targets) or 0 for part in self._parts)

    def pick_fixed(
        self, pairs: Pairs, positive: Tensor, step: FixedStep
    ) -> tuple[Draw, Int64[Tensor, " m"]]:
        """The draws of all parts."""
        parts = [part for part in self._parts if isinstance(part, FromStratum)]
        alone = step._replace(needs_target_q=False)
        picked = [part.pick_fixed(pairs, positive, alone) for part in parts]
        places = torch.cat([inside for _, inside in picked])
        sizes = [part.m for part in parts]

        def log_q_at(places: Tensor) -> Tensor:
            return mean_of([part.log_q_at(places) for part in parts], sizes)

        ids = torch.cat([draw.ids for draw, _ in picked])
        of_targets = log_q_at(positive.clamp(min=0)) if step.needs_target_q else None
        return Draw(ids, log_q_at(places), of_targets, sum(sizes)), places

    def _joined(self, draws: list[Draw], label: Tensor) -> Draw:
        sizes = [float(draw.m) for draw in draws]
        ids = torch.cat([draw.ids for draw in draws])
        log_q, of_targets = (self._log_q(t, sizes) for t in (ids, label))
        return Draw(ids, log_q, of_targets, sum(sizes))

    def log_q(self, ids: Tensor) -> Tensor:
        """Not known without a batch, which decides the parts' sizes."""
        raise NotImplementedError

    def remember(self, batch: JointBatch) -> None:
        """In all parts."""
        for part in self._parts:
            part.remember(batch)

    @property
    def may_refuse(self) -> bool:
        """If a part may."""
        return any(part.may_refuse for part in self._parts)

    def check(self, batch: JointBatch) -> None:
        """In all parts."""
        for part in self._parts:
            part.check(batch)

    def _log_q(self, ids: Tensor, sizes: list[float]) -> Tensor:
        return mean_of([part.log_q(ids) for part in self._parts], sizes)

    @property
    def _parts(self) -> list[OwnPart]:
        return [part for part in self.parts if isinstance(part, OwnPart)]


def own_part_of(sampler: Sampler, labels: ShardedLabels, rank: int, ranks: int) -> OwnPart:
    """A sampler of all labels as one rank sees it, with the q of its own counts.

    Args:
        sampler: of all labels.
        labels: the head's, of this rank.
        rank: its number.
        ranks: how many there are.
    """
    share = labels.share
    if isinstance(sampler, Mixture):
        parts = [own_part_of(part, labels, rank, ranks) for part in sampler.samplers]
        return Together(parts)
    counted = labels_of(sampler, labels) if isinstance(sampler, Counted) else labels
    if isinstance(sampler, WithinBatch):
        return FromBatches(WithinBatch(counted, sampler.num_negatives), share)  # pyright: ignore[reportArgumentType]
    if isinstance(sampler, Queue):
        return FromBatches(Queue(counted, sampler.capacity, sampler.num_negatives), share)  # pyright: ignore[reportArgumentType]
    return FromStratum(sampler, share, rank, ranks, counted)


def picked(part: OwnPart, batch: JointBatch, *, remembered: bool) -> Draw:
    """A rank's draws. On a CPU, all ranks refuse a batch that one of them refuses.

    Args:
        part: the sampler as this rank sees it.
        batch: of all ranks.
        remembered: whether it is put into queues afterwards.
    """

    def checked() -> Draw:
        if remembered:
            part.check(batch)
        return part.pick(batch)

    if part.may_refuse and batch.hidden.is_cpu:
        return everywhere(batch.ranks, checked)
    return part.pick(batch)


def given_part(draw: Draw, weighting: Weighting, batch: JointBatch, share: Share) -> Draw:
    """A rank's part of negatives that were drawn ahead.

    Args:
        draw: of all ranks.
        weighting: their weights.
        batch: of all ranks.
        share: the rank's rows.
    """
    if isinstance(draw, Draw) and not draw.shared:
        raise HeadtailError(
            "`draw` must be shared by the batch, `ids` of shape [m]: ranks cannot share draws for "
            "each example."
        )
    check_draw(draw, weighting, batch.pairs, share.placement.num_labels, "the head")
    return own_part(draw, share)


def take_over(part: OwnPart | None, before: OwnPart | None) -> None:
    """Fill the queues of a sampler from those of the one that it replaces, if both have the same;
    others begin empty, as in a new loss.
    """
    if part is None or before is None:
        return
    state = before.state_dict()
    if _shapes(part.state_dict()) == _shapes(state):
        part.load_state_dict(state)


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


def own_part(draw: Draw, share: Share) -> Draw:
    """A shared draw without the labels of other ranks."""
    own = share.own_places(draw.ids) >= 0
    if draw.void is not None:
        own &= ~draw.void
    slots = None if draw.slots is None else draw.slots[own]
    return replace(draw, ids=draw.ids[own], log_q=draw.log_q[own], slots=slots, void=None)


def every_own_label(
    share: Share, num_labels: int, device: torch.device, places: slice = slice(None)
) -> Draw:
    """Every label of this rank once, m·q = 1: with it, a sampled loss is the exact one.

    Args:
        share: the rank's rows.
        num_labels: L, of all ranks.
        device: where the ids are made.
        places: only the labels at these places of the share.
    """
    start, stop, _ = places.indices(len(share))
    ids = share.labels(torch.arange(start, stop, device=device))
    log_q = torch.full((len(ids),), -math.log(num_labels), dtype=torch.float64, device=device)
    return Draw(ids, log_q, None, float(num_labels))
