"""What the ranks of a `ShardedLabelHead` send in one training step, as formulas. The tests compare
them with what is really sent. Nothing here depends on the number of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]

NUMBERS = 6
"""Whole numbers of each rank that are exchanged first: sizes, flags with a digest of what must be
the same on all ranks, and the seed.
"""
WHOLE = 8
"""Bytes of an int64, and of a float64."""
SUMMED = 4
"""Bytes of a number that is summed, at least: those of a float32."""


@dataclass(frozen=True)
class Message:
    """One call of a collective.

    Attributes:
        what: is sent.
        collective: how.
        size: bytes of what one rank gives (`all_gather`), of the sum (`all_reduce`), or of what
            one rank gets (`reduce_scatter`), or gets from each (`all_to_all`).
    """

    what: str
    collective: Collective
    size: int

    def sent(self, ranks: int) -> float:
        """Bytes that one rank sends, and receives, if ranks form a ring.

        >>> Message("hidden states", "all_gather", 100).sent(ranks=4)
        300.0
        >>> Message("sums", "all_reduce", 100).sent(ranks=4)
        150.0
        """
        if self.collective == "all_reduce":
            return 2 * (ranks - 1) / ranks * self.size
        return float((ranks - 1) * self.size)


@dataclass(frozen=True)
class StepShape:
    """What decides the bytes of a step.

    Attributes:
        examples: b, of the rank that has most.
        dim: d.
        pairs: targets of the rank that has most; None where each example has one.
        all_pairs: targets of all ranks, P.
        number: bytes of a number of the hidden states; 4 in float32.
        several: whether examples may have several targets.
        grouped: whether targets have groups.
        loss: `"softmax"` or `"decoupled"`.
        smoothed: whether there is label smoothing.
        temperature: whether a temperature is learnt.
        each: whether each target's loss is returned (`reduction="none"`).
        weight: bytes of an example's `sample_weight`, 0 without them.
        known: `known_positives` of the rank that has most, 0 without them.
        staged: whether the step is taken in stages, as on a GPU (`ShardedLabelHead.capture`): all
            ranks then send as many examples, and the numbers of positives travel with the sums.
    """

    examples: int
    dim: int
    all_pairs: int
    pairs: int | None = None
    number: int = 4
    several: bool = False
    grouped: bool = False
    loss: Literal["softmax", "decoupled"] = "softmax"
    smoothed: bool = False
    temperature: int = 0
    each: bool = False
    weight: int = 0
    known: int = 0
    staged: bool = False
    unseen: bool = False


def step_messages(shape: StepShape) -> list[Message]:
    """All that one training step sends, forward and backward, in this order.

    >>> shape = StepShape(examples=1024, dim=128, all_pairs=8192)
    >>> [(message.what, message.size) for message in step_messages(shape)][:3]
    [('sizes and seed', 48), ('targets', 8192), ('hidden states', 524288)]
    """
    states = shape.examples * shape.dim * shape.number
    pairs = shape.examples if shape.pairs is None else shape.pairs
    columns = 1 + shape.several + shape.grouped
    narrow = shape.number < SUMMED
    how: Collective = "all_to_all" if narrow else "reduce_scatter"
    scattered = Message("gradients of hidden states", how, states)
    each_pair = shape.all_pairs * max(shape.number, SUMMED)
    messages: list[Message] = [
        Message("sizes and seed", "all_gather", NUMBERS * WHOLE),
        Message("targets", "all_gather", pairs * columns * WHOLE),
        Message("weights of examples", "all_gather", shape.examples * shape.weight),
        Message("known positives", "all_gather", shape.known * 2 * WHOLE),
        Message("hidden states", "all_gather", states),
    ]
    if shape.staged:
        messages += [
            Message("highest terms", "all_reduce", each_pair),
            Message(
                "positives, and sums over negatives", "all_reduce", shape.all_pairs * 3 * WHOLE
            ),
            scattered,
        ]
        return [message for message in messages if message.size]
    messages.append(Message("refusals", "all_gather", shape.unseen * WHOLE))
    messages.append(Message("positives", "all_reduce", shape.all_pairs * 2 * WHOLE))
    if shape.loss == "softmax":
        messages.append(Message("highest terms", "all_reduce", each_pair))
    messages.append(Message("sums over negatives", "all_reduce", each_pair))
    if shape.smoothed:
        messages.append(Message("sums for smoothing", "all_reduce", 2 * each_pair))
    if shape.each:
        messages.append(Message("gradients of losses", "all_reduce", each_pair))
    messages += [
        Message("gradient of the temperature", "all_reduce", shape.temperature),
        scattered,
    ]
    return [message for message in messages if message.size]


def sent_per_step(shape: StepShape, ranks: int) -> dict[str, float]:
    """Bytes that one rank sends in a step, by collective, if ranks form a ring.

    >>> sent = sent_per_step(StepShape(examples=1024, dim=128, all_pairs=8192), ranks=8)
    >>> {name: round(size / 1e6, 2) for name, size in sent.items()}
    {'all_gather': 3.73, 'all_reduce': 0.34, 'reduce_scatter': 3.67}
    """
    sent: dict[str, float] = {}
    for message in step_messages(shape):
        sent.setdefault(message.collective, 0.0)
        sent[message.collective] += message.sent(ranks)
    return sent
