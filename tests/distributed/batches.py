"""Batches of several ranks, and the same batches as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headtail import Labels, Ragged
from headtail.core.targets import Pairs, Target

L, D = 29, 4
LABELS = Labels.zipf(L)
SIZES = (4, 0, 6, 3)
"""Examples of a rank, which changes with every step: ranks differ, and some have none."""


class Batch(NamedTuple):
    """Hidden states, targets and the options of a call."""

    hidden: Tensor
    target: Target
    options: dict[str, Any]


Form = Callable[[int, torch.Generator], Batch]
"""Makes a batch of so many examples."""


def of_ranks(form: Form, step: int, ranks: int, dtype: torch.dtype) -> list[Batch]:
    """The batches of all ranks in one step: the same on all of them, and in all precisions."""
    generator = torch.Generator().manual_seed(step)
    sizes = [SIZES[(rank + step) % len(SIZES)] for rank in range(ranks)]
    batches = [form(size, generator) for size in sizes]
    return [batch._replace(hidden=batch.hidden.to(dtype)) for batch in batches]


def as_one(batches: list[Batch]) -> Batch:
    """The batches of all ranks one behind the other, put together without the library."""
    options = {
        name: _joined([batch.options[name] for batch in batches]) for name in batches[0].options
    }
    target = _joined([batch.target for batch in batches])
    return Batch(torch.cat([batch.hidden for batch in batches]), target, options)


def pairs_before(batches: list[Batch], rank: int) -> int:
    """How many targets the ranks before this one have."""
    return sum(number_of_pairs(batch.target) for batch in batches[:rank])


def number_of_pairs(target: Target) -> int:
    """Padding included."""
    if isinstance(target, Tensor):
        return target.numel()
    return len(target.values if isinstance(target, Ragged) else target.label)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Ragged):
        lists = []
        for values, offsets in parts:
            lists += [part.tolist() for part in values.tensor_split(offsets[1:-1])]
            if len(offsets) == 1:
                lists.pop()
        return Ragged.from_lists(lists)
    if isinstance(parts[0], Pairs):
        starts = torch.tensor([0, *(len(part.label) for part in parts)]).cumsum(0)
        groups = [part.group + start for part, start in zip(parts, starts[:-1], strict=True)]
        label = torch.cat([part.label for part in parts])
        return Pairs(label, None, None, len(label), group=torch.cat(groups))
    return torch.cat(parts)


def _hidden(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, D, generator=generator, dtype=torch.float64)


def _labels(*shape: int, generator: torch.Generator) -> Tensor:
    if 0 in shape:
        return torch.zeros(shape, dtype=torch.int64)
    weights = LABELS.prior.expand(shape[0], L)
    drawn = torch.multinomial(
        weights, shape[-1] if len(shape) > 1 else 1, True, generator=generator
    )
    return drawn.reshape(shape)


def ids(size: int, generator: torch.Generator) -> Batch:
    """One label for each example."""
    hidden = _hidden(size, generator=generator)
    return Batch(hidden, _labels(size, generator=generator), {})


def ignoring(size: int, generator: torch.Generator) -> Batch:
    """Some targets do not count."""
    batch = ids(size, generator)
    skipped = torch.rand(size, generator=generator) < 0.4
    return batch._replace(target=batch.target.masked_fill(skipped, -100))


def weighed(size: int, generator: torch.Generator) -> Batch:
    """Each example has a weight."""
    weight = torch.rand(size, generator=generator, dtype=torch.float64)
    return ids(size, generator)._replace(options={"sample_weight": weight})


def padded(size: int, generator: torch.Generator) -> Batch:
    """Up to three labels for each example."""
    target = _labels(size, 3, generator=generator)
    target[torch.rand(size, 3, generator=generator) < 0.4] = -100
    return Batch(_hidden(size, generator=generator), target, {})


def ragged(size: int, generator: torch.Generator) -> Batch:
    """As many labels as an example has, perhaps none."""
    lists = [[label for label in row if label >= 0] for row in padded(size, generator).target]
    return Batch(_hidden(size, generator=generator), Ragged.from_lists(lists), {})


def ragged_with_weights(size: int, generator: torch.Generator) -> Batch:
    """Weights of examples that have several labels."""
    weight = torch.rand(size, generator=generator, dtype=torch.float64)
    return ragged(size, generator)._replace(options={"sample_weight": weight})


def with_known(size: int, generator: torch.Generator) -> Batch:
    """Examples have labels that are no negatives, besides their target."""
    lists = torch.randint(L, (size, 5), generator=generator).tolist()
    return ids(size, generator)._replace(options={"known_positives": Ragged.from_lists(lists)})


def with_known_padded(size: int, generator: torch.Generator) -> Batch:
    """The same as a matrix with padding."""
    known = torch.randint(-1, L, (size, 5), generator=generator)
    known = known.masked_fill(known < 0, -100)
    return ids(size, generator)._replace(options={"known_positives": known})


def positions(size: int, generator: torch.Generator) -> Batch:
    """Sequences of two positions, some of them without a target."""
    target = _labels(size, 2, generator=generator)
    target[torch.rand(size, 2, generator=generator) < 0.3] = -100
    return Batch(_hidden(size, 2, generator=generator), target, {})


def weighed_positions(size: int, generator: torch.Generator) -> Batch:
    """Each position has a weight."""
    weight = torch.rand(size, 2, generator=generator, dtype=torch.float64)
    return positions(size, generator)._replace(options={"sample_weight": weight})


def groups(size: int, generator: torch.Generator) -> Batch:
    """Neighbours come together."""
    batch = ids(size, generator)
    group = torch.arange(size) // 2
    return batch._replace(target=Pairs(batch.target, None, None, size, group=group))
