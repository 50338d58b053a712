"""The batch's own labels as negatives."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.core.draw import Draw
from headtail.core.labels import Labels, check_labels
from headtail.core.targets import Pairs
from headtail.errors import HeadtailError, check_count, check_ids
from headtail.samplers.interfaces import FixedSampler, iid_variance
from headtail.samplers.sampler import Claims, Step


@final
class WithinBatch(FixedSampler):
    r"""The labels of the other examples in the batch are the negatives: $q = \pi$.

    It costs nothing to draw. With constant weights it leans to the tail (the equalised loss), with
    relative weights to the head, with importance weights to neither.

    Duplicates are kept: only the *multiset* of a batch's labels follows π. An example's own slot
    can only hit its own positive, so n labels taken from a batch of B hold $n(1 - 1/B)\,\pi_{y'}$
    copies of another label $y'$ in expectation, and `Draw.m` is **m = n(1 − 1/B)**. All of this
    holds for batches drawn over (point, label) *pairs*. The factor N/(N−1) of shuffling by epoch is
    ignored. Pairs that come together, such as the items of a sequence, are taken apart by
    `Pairs.group`: those of other groups are draws from π.

    With a process group, B counts the batches of all its ranks: their labels travel, and every rank
    gets the draw that one process would get for its part of the joint batch. `Draw.slots` are then
    places among the targets of all ranks, in the order of `headtail.distributed.gather`. In
    `eval()` mode a rank takes its own batch.

    Args:
        labels: q is their unsmoothed frequency.
        num_negatives: n; None takes the whole batch. A smaller batch is taken whole.
        group: a process group, a mesh with one dimension, or "world" for all processes: take the
            batches of all its ranks, which must all draw.

    >>> draw = WithinBatch(Labels.from_counts([5, 3, 2])).draw(torch.tensor([0, 1, 1, 2]))
    >>> draw.ids, draw.m
    (tensor([0, 1, 1, 2]), 3.0)
    """

    def __init__(
        self, labels: Labels, num_negatives: int | None = None, *, group: Any = None
    ) -> None:
        super().__init__()
        check_labels(labels)
        self.labels = labels
        self.num_labels = labels.num_labels
        self.num_negatives = (
            None if num_negatives is None else check_count("num_negatives", num_negatives)
        )
        self.ranks = None if group is None else Ranks.of(group)

    def pick(self, step: Step) -> Draw:
        """All labels of the batch, or a random n of them."""
        if step.pairs.multi_label:
            warnings.warn(
                "WithinBatch saw whole multi-label points: a point's labels then come together, so "
                "q is not the prior. Batch over shuffled (point, label) pairs to make q exact.",
                stacklevel=4,
            )
        if self.ranks is None or not self.training:
            return self._pick_from(step)
        pairs, start = _of_all_ranks(step.pairs, self.ranks)
        draw = self._pick_from(step._replace(pairs=pairs))
        return draw.for_rows(start, start + len(step.pairs.label))

    def _pick_from(self, step: Step) -> Draw:
        if step.fixed_size and not step.pairs.all_count and self.takes_all(len(step.pairs.label)):
            return self._whole_batch(step.pairs)
        label = step.pairs.label
        # If some are ignored, their number is unknown beforehand, and the host waits for CUDA.
        counted = None if step.pairs.all_count else (~step.pairs.ignored).nonzero().squeeze(1)
        size = len(label) if counted is None else len(counted)
        if size > 1 and self.num_negatives is not None and self.num_negatives < size:
            order = torch.randperm(size, device=label.device, generator=step.generator)
            slots = order[: self.num_negatives]
        else:  # a single example has no others
            slots = torch.arange(size if size != 1 else 0, device=label.device)
        slots = slots if counted is None else counted[slots]
        ids = label[slots]
        log_q = self.log_q(label)
        keep = 0.0 if step.pairs.group is None else _log_keep(step.pairs, size)
        m = self.expected_m(size)
        draw = Draw(ids, log_q[slots], log_q, m, keep, slots, groups=step.pairs.group)
        if self.labels.never_seen:
            require_seen(draw.ids, draw.log_q, "WithinBatch")
        return draw

    def _whole_batch(self, pairs: Pairs) -> Draw:
        """All places of the batch, those of ignored targets void: the host waits for nothing."""
        label = pairs.label
        counted = (~pairs.ignored).sum()
        # A single example has no others: all places are void, whatever m is, and log m is finite.
        void = pairs.ignored | (counted == 1)
        m = (counted - 1).clamp(min=1).double()
        log_q = self.log_q(label)
        keep = 0.0 if pairs.group is None else _log_keep(pairs, counted)
        slots = torch.arange(len(label), device=label.device)
        return Draw(label, log_q, log_q, m, keep, slots, groups=pairs.group, void=void)

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log of the unsmoothed training frequency."""
        return self.labels.log_frequency(ids)

    def expected_m(self, batch_size: int | None = None) -> float:
        """n(1 − 1/B)."""
        if batch_size is None:
            raise HeadtailError(
                "`batch_size` decides how many negatives `WithinBatch` has: pass it, for example "
                "`batch_size=256`."
            )
        return self._taken(batch_size) * (1 - 1 / batch_size) if batch_size else 0.0

    def m_given(self, step: Step) -> float:
        """The m of a draw in this step, in which batches of several ranks count together."""
        size = step.batch_size
        if self.ranks is not None and self.training and not step.long_run:
            device = step.pairs.label.device
            size = sum(of_rank for (of_rank,) in self.ranks.numbers([size or 0], device))
        return self.expected_m(size)

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """The others' labels are independent draws from π, and their number K varies by one:
        E[K]·V[t] + V[K]·E[t]².
        """
        q = self.log_q(torch.arange(self.num_labels, device=term.device)).exp()
        mean, variance = iid_variance(q, term)
        m = self.expected_m(batch_size)
        own_slot_taken = self._taken(batch_size) / batch_size if batch_size else 0.0
        return m * variance + own_slot_taken * (1 - own_slot_taken) * mean**2

    def independent(self, batch_size: int | None = None) -> bool:
        """Only if the whole batch is taken: otherwise their number varies."""
        return batch_size is not None and self._taken(batch_size) == batch_size

    def extra_repr(self) -> str:
        """Size and number taken."""
        across = "" if self.ranks is None else f", group={self.ranks.name or 'world'!r}"
        taken = self.num_negatives or "all"
        return f"num_labels={self.num_labels}, num_negatives={taken}{across}"

    @property
    def claims(self) -> Claims:
        """One draw for the whole batch, without labels that have no example."""
        return Claims(
            may_miss=self.labels.never_seen > 0,
            source="batch",
            # Other labels are counted while they are used, and ranks wait for each other.
            replayable=self.labels.unchanging and self.ranks is None,
        )

    def for_labels(self, labels: Labels) -> WithinBatch:
        """Within-batch with the grown label set's frequencies."""
        return WithinBatch(labels, self.num_negatives, group=self.ranks)

    def takes_all(self, batch_size: int) -> bool:
        """Whether all targets of a batch of this size are negatives."""
        return self.num_negatives is None or self.num_negatives >= batch_size

    def _taken(self, batch_size: int) -> int:
        return batch_size if self.num_negatives is None else min(self.num_negatives, batch_size)


def _of_all_ranks(pairs: Pairs, ranks: Ranks) -> tuple[Pairs, int]:
    """The targets of all ranks as one batch, and where those of this rank begin."""
    ignored = -1
    label = pairs.label.masked_fill(pairs.ignored, ignored)
    ranks.check_device("target", label)
    sizes = [size for (size,) in ranks.numbers([len(label)], label.device)]
    start = sum(sizes[: ranks.rank])
    joint = Pairs.of(gather_rows(label, ranks, sizes), ignore_index=ignored)
    if pairs.group is not None:
        joint = replace(joint, group=gather_rows(pairs.group + start, ranks, sizes))
    return joint, start


def _log_keep(pairs: Pairs, size: int | Tensor) -> Float64[Tensor, " p"]:
    """−log of the share of the other examples that are in other groups; 0 where there are none."""
    assert pairs.group is not None
    counted = (~pairs.ignored).double()
    check_ids("group", pairs.group, len(counted))
    together = torch.zeros_like(counted).scatter_add_(0, pairs.group, counted)[pairs.group]
    others = (size - 1).clamp(min=1) if isinstance(size, Tensor) else max(size - 1, 1)
    share = (size - together) / others
    return torch.where(share > 0, -share.log(), 0.0)


def require_seen(ids: Tensor, log_q: Tensor, who: str) -> None:
    """Refuse batch labels whose training count is zero: their weight would be infinite."""
    if ids.device.type == "cpu" and bool((impossible := log_q == -torch.inf).any()):
        raise HeadtailError(
            f"`{who}` was given label {int(ids[impossible][0])}, which has no training example in "
            "`labels`. "
            "Count the data you train on (`labels.update(target)`), or sample with `Uniform`."
        )
