"""The batches of all ranks as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtail.answers.scored_table import check_hidden as check_scored
from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.collectives.shared import states_of_all
from headtail.core.targets import Pairs, Target
from headtail.distributed.same_call import Facts, digest_of_facts, refuse_unlike
from headtail.errors import HeadtailError
from headtail.losses.inputs import by_position, check_hidden
from headtail.losses.options import Settings

IGNORED = torch.iinfo(torch.int64).min
"""The label of a target that does not count, while it travels: nobody's own."""
REFUSED = [-1] * 6
"""The numbers of a rank that refuses its batch."""
OPTIONS = 4
"""Flags of a call that must be the same on all ranks; then comes `READY`."""
READY = 1 << OPTIONS
"""The flag of a rank that can take its step in stages."""
REPLAYED = READY << 1
"""The flag of a rank that does so already, and does not wait for these numbers."""
DIGEST = REPLAYED << 1
"""Times this, a digest of all else that must be the same on all ranks follows the flags."""


@dataclass(frozen=True, eq=False)
class OwnBatch:
    """The batch of this rank, checked.

    Attributes:
        hidden: `[b, d]` hidden states.
        pairs: its targets.
        settings: options of the loss, with those of this call.
        known: labels of its examples that are no negatives, or None.
        positions: B and T of hidden states `[B, T, d]`, or None.
    """

    hidden: Float[Tensor, "b d"]
    pairs: Pairs
    settings: Settings
    known: Pairs | None
    positions: tuple[int, int] | None

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        target: Target,
        settings: Settings,
        weight: Float[Tensor, "n d"],
        num_labels: int,
    ) -> OwnBatch:
        """From the arguments of a head with this table and so many labels."""
        positions = None
        if isinstance(hidden, Tensor) and hidden.dim() == 3:
            positions = (hidden.shape[0], hidden.shape[1])
            target = by_position(target, positions)
            hidden = hidden.flatten(0, 1)
        check_scored(hidden, weight)
        ignore_index = settings.ignore_index
        pairs = Pairs.of(target, num_labels=num_labels, ignore_index=ignore_index)
        check_hidden(hidden, pairs)
        if positions is not None:
            pairs = replace(pairs, positions=positions)
        known = None
        if settings.known_positives is not None:
            given = settings.known_positives
            known = Pairs.of(given, ignore_index=ignore_index, name="known_positives")
            if known.num_examples != pairs.num_examples:
                raise HeadtailError(
                    f"`known_positives` has {known.num_examples} examples but `target` has "
                    f"{pairs.num_examples}. Match them."
                )
        if settings.sample_weight is not None:
            settings.weights(pairs)  # refuses those that do not fit
        return cls(hidden, pairs, settings, known, positions)

    def numbers(self, seed: int, facts: Facts, *, given: bool, ready: bool) -> list[int]:
        """What other ranks must know before anything else travels.

        Args:
            seed: this rank's; that of the first rank decides what ranks draw together.
            facts: what must be the same on all ranks.
            given: whether negatives were drawn ahead.
            ready: whether this rank can take the step in stages.
        """
        options = [
            self.pairs.group is not None,
            self.settings.sample_weight is not None,
            self.known is not None,
            given,
        ]
        flags = sum(bool(option) << place for place, option in enumerate([*options, ready]))
        flags += digest_of_facts(facts) * DIGEST
        known = 0 if self.known is None else len(self.known.label)
        pairs = len(self.pairs.label)
        return [len(self.hidden), pairs, known, self.pairs.multi_label, flags, seed]


@dataclass(frozen=True, eq=False)
class JointBatch:
    """The batches of all ranks, one behind the other: equal on all of them.

    Attributes:
        hidden: `[B, d]` hidden states; their gradients travel back.
        pairs: the targets of all ranks.
        settings: options of the loss, for all examples.
        own: which of the pairs are this rank's.
        seed: a number that all ranks know, for randomness that they share.
        own_seed: one of this rank, for randomness of its own.
        ranks: they.
    """

    hidden: Float[Tensor, "B d"]
    pairs: Pairs
    settings: Settings
    own: slice
    seed: int
    own_seed: int
    ranks: Ranks

    @cached_property
    def shared_random(self) -> torch.Generator:
        """The same random numbers on all ranks."""
        return torch.Generator(self.hidden.device).manual_seed(self.seed)

    @cached_property
    def own_random(self) -> torch.Generator:
        """Random numbers of this rank. Parts of a mixture take one after the other."""
        return torch.Generator(self.hidden.device).manual_seed(self.own_seed + 1 + self.ranks.rank)

    @classmethod
    def of(cls, batch: OwnBatch, ranks: Ranks, table: list[list[int]]) -> JointBatch:
        """Gather the batches of all ranks. Every rank must call it.

        Args:
            batch: this rank's.
            ranks: they.
            table: the numbers of all ranks, with which `check_alike` agrees.
        """
        ranks.check_device("hidden", batch.hidden)
        examples, pairs, known, several, _, seeds = (
            list(column) for column in zip(*table, strict=True)
        )
        first = sum(examples[: ranks.rank])
        size = (first, sum(examples))
        joint = _gathered(batch.pairs, ranks, pairs, size, several=any(several))
        options: dict[str, Any] = {}
        if batch.settings.sample_weight is not None:
            weight = batch.settings.sample_weight.flatten()
            options["sample_weight"] = gather_rows(weight, ranks, examples)
        if batch.known is not None:
            listed = _gathered(batch.known, ranks, known, size, several=True)
            options["known_positives"] = listed
        start = sum(pairs[: ranks.rank])
        return cls(
            states_of_all(batch.hidden, ranks, examples),
            joint,
            replace(batch.settings, **options) if options else batch.settings,
            slice(start, start + pairs[ranks.rank]),
            seeds[0],
            seeds[ranks.rank],
            ranks,
        )


def replayed(numbers: list[int]) -> bool:
    """Whether a rank with these numbers takes its step in stages already."""
    return numbers != REFUSED and bool(numbers[-2] & REPLAYED)


def check_alike(ranks: Ranks, table: list[list[int]], facts: Facts) -> None:
    """Refuse calls that differ by rank in what must be the same; every rank raises the same error.

    Args:
        ranks: who must all call it.
        table: the numbers of all ranks.
        facts: this rank's.
    """
    flags = [numbers[-2] for numbers in table]
    if len({flag % READY for flag in flags}) > 1:
        raise HeadtailError(
            "Ranks call the head in different ways: `draw`, `sample_weight`, `known_positives` "
            "or groups of targets are there on some ranks only. Pass them on all ranks."
        )
    if len({flag // DIGEST for flag in flags}) > 1:
        refuse_unlike(ranks, "the head", facts)


def all_ready(table: list[list[int]]) -> bool:
    """Whether all ranks can take this step in stages."""
    return all(numbers[-2] & READY for numbers in table)


def _gathered(
    pairs: Pairs, ranks: Ranks, sizes: list[int], examples: tuple[int, int], *, several: bool
) -> Pairs:
    """Pairs of all ranks, whose examples are counted on from those of the ranks before.

    Args:
        pairs: this rank's.
        ranks: they.
        sizes: numbers of pairs by rank.
        examples: how many the ranks before have, and all together.
        several: whether an example may have several pairs, on any rank.
    """
    columns = [pairs.label.masked_fill(pairs.ignored, IGNORED)]
    if several:
        columns.append(pairs.example_of() + examples[0])
    if pairs.group is not None:
        columns.append(pairs.group + sum(sizes[: ranks.rank]))
    rows = gather_rows(torch.stack(columns, 1), ranks, sizes)
    label, *others = rows.unbind(1)
    example = others.pop(0) if several else None
    group = others.pop(0) if pairs.group is not None else None
    return Pairs(label, example, label == IGNORED, examples[1], group=group)
