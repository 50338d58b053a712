"""A training step of one rank in stages: tensors at fixed places, work on them, and what travels in
between. The host waits for nothing, so the work can be replayed as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.core.placement import Share
from headtail.core.targets import Pairs
from headtail.core.weightings import kernel_log_weights
from headtail.distributed.joint_batch import IGNORED, REPLAYED
from headtail.distributed.own_draws import FixedStep, OwnPart
from headtail.distributed.rows_in_use import own_targets, rows_in_use
from headtail.losses.graph import Call
from headtail.losses.options import Settings
from headtail.losses.staged import Room, Scored, stages_for
from headtail.rows.decay import catch_up
from headtail.rows.link import link_of


class Stage(NamedTuple):
    """A part of a step.

    Attributes:
        do: it.
        travels: whether it is a message to other ranks, not work of this one.
    """

    do: Callable[[], None]
    travels: bool


class StagedStep:
    """Draws, loss and all gradients of one rank's part of a batch.

    Args:
        call: loss and tables.
        part: the loss's sampler as this rank sees it.
        share: this rank's rows.
        ranks: all ranks.
        size: the number of examples of the rank that has most; others are padded.

    Attributes:
        loss: the loss of all ranks' batches.
        grad_hidden: `[size, d]` gradients of this rank's hidden states, times the number of ranks.
        rows: `[p + m]` the row of each entry of the tables' gradients.
        values: `[p + m, d]` the entries of the label table, then `[p + m, 1]` those of biases.
        stages: what to do, in order.
    """

    def __init__(self, call: Call, part: OwnPart, share: Share, ranks: Ranks, size: int) -> None:
        hidden = call.hidden
        device = hidden.device
        d = hidden.shape[-1]
        self.size = size
        self.generator = torch.Generator(device)
        self._call = call
        self._part = part
        self._share = share
        self._ranks = ranks
        self._padded = 0
        self._rank = ranks.rank
        ignored = call.loss.settings.ignore_index
        self._ignored = IGNORED if ignored is None else ignored
        """The label of padding, which is ignored alike."""
        whole = {"dtype": torch.int64, "device": device}
        like = {"dtype": hidden.dtype, "device": device}
        numbers = [size, size, 0, 0, REPLAYED, 0]
        self._numbers = torch.tensor(numbers, **whole)
        self._all_numbers = torch.empty(ranks.size * len(numbers), **whole)
        self._target = torch.full((size,), self._ignored, **whole)
        self._label = torch.empty(ranks.size * size, **whole)
        self._hidden = torch.zeros(size, d, **like)
        self._states = torch.empty(ranks.size * size, d, **like)
        self._grad_states = torch.empty(ranks.size * size, d, **like)
        self.grad_hidden = torch.empty(size, d, **like)
        draws = part.most_draws(ranks.size * size)
        assert draws is not None, "only draws of a fixed size have stages"
        entries = ranks.size * size + draws
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self.loss = torch.empty((), dtype=wide, device=device)
        self.rows = torch.empty(entries, **whole)
        self.values = [t.detach().new_empty(entries, t.shape[1]) for t in _of(call)]
        self.stages = (
            Stage(self._gather, travels=True),
            Stage(self._score, travels=False),
            Stage(self._find_highest, travels=True),
            Stage(self._sum, travels=False),
            Stage(self._add_sums, travels=True),
            Stage(self._differentiate, travels=False),
            Stage(self._scatter, travels=True),
        )

    def load(self, hidden: Tensor, target: Tensor, seed: int) -> None:
        """Take a batch in, of at most `size` examples.

        Args:
            hidden: `[b, d]`.
            target: `[b]` ids.
            seed: a number; that and the rank's decide its draws.
        """
        number = target.shape[0]
        if number == self.size:
            self._hidden.copy_(hidden)
            self._target.copy_(target)
        else:
            self._hidden[:number].copy_(hidden)
            self._target[:number].copy_(target)
        if number < self.size - self._padded:
            self._target[number:].fill_(self._ignored)
            self._hidden[number:].zero_()
        self._padded = self.size - number
        self.generator.manual_seed(seed + 1 + self._rank)

    def _gather(self) -> None:
        # A rank that does not take this step in stages sends its numbers first, and waits for those
        # of the others: it learns from these that they do.
        self._ranks.gather_into(self._all_numbers, self._numbers)
        self._ranks.gather_into(self._label, self._target)
        self._ranks.gather_into(self._states, self._hidden)

    def _score(self) -> None:
        call = self._call
        settings = call.loss.settings
        pairs = Pairs.of(self._label, ignore_index=self._ignored)
        positive, label, self._scale = own_targets(self._share, pairs, _scale(settings, pairs))
        pairs = replace(pairs, label=label)
        weighting = call.loss.weighting
        fixed = FixedStep(self.generator, weighting.needs_target_q)
        draw, drawn = self._part.pick_fixed(pairs, positive, fixed)
        a, b = kernel_log_weights(weighting, draw, label)
        compared = settings.compared(pairs, draw, weighting) or (None, draw.ids)
        negatives = rows_in_use(positive, drawn, self.rows)
        for table in _of(call):
            catch_up(table, self.rows)
        states = self._states
        if settings.temperature != 1:
            states = states / settings.temperature
        self._scored = Scored(states, call.weight, call.bias, positive, negatives)
        self._do = stages_for(self._scored)
        self._terms = self._do.own_terms(self._scored, *compared, a, b)

    def _find_highest(self) -> None:
        self._ranks.reduce_(self._terms.highest, highest=True)

    def _sum(self) -> None:
        self._do.sum_terms(self._terms)

    def _add_sums(self) -> None:
        self._ranks.reduce_(self._terms.known)

    def _differentiate(self) -> None:
        room = Room(self.loss, self._grad_states, self.values[0])
        result = self._do.own_gradients(self._scored, self._terms, self._scale, room)
        temperature = self._call.loss.settings.temperature
        grad = result.grad_input
        _put(result.total, self.loss)
        _put(grad if temperature == 1 else grad / temperature, self._grad_states)
        values = [result.grad_rows, result.grad_scores[:, None]]  # biases are not always there
        for value, to in zip(values, self.values, strict=False):
            _put(value, to)

    def _scatter(self) -> None:
        # What averages the gradients of an encoder divides by the number of ranks.
        self._ranks.sum_into(self.grad_hidden, self._grad_states, times=self._ranks.size)

    def expect_decay(self) -> None:
        """Let rows catch up with weight decay in every replay."""
        for table in _of(self._call):
            link = link_of(table)
            if link is not None and link.decay is not None:
                link.decay.settled = False


def _put(value: Tensor, to: Tensor) -> None:
    """Copy a result to where it belongs, unless it was computed there."""
    if value is not to:
        to.copy_(value)


def _scale(settings: Settings, pairs: Pairs) -> Tensor:
    """`[p]` each target's factor in the reduced loss."""
    if settings.reduction == "mean" and pairs.share is not None:
        return pairs.share
    counts = (~pairs.ignored).double()
    return counts if settings.reduction == "sum" else counts / counts.sum().clamp(min=1)


def _of(call: Call) -> list[Tensor]:
    """The tables of a call."""
    return [call.weight] if call.bias is None else [call.weight, call.bias]
