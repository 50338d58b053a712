"""Every outcome of samplers inside samplers, in a batch with an ignored target and half-filled
queues.

A composite draws from its parts one after the other, so what can happen to it is the product of
what can happen to them. Each move is one such way: its chance, and the script that makes it happen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from headtail import (
    Adversarial,
    Block,
    CustomSeparable,
    FourierKernel,
    Frequency,
    Given,
    Hard,
    LogUniform,
    Mixture,
    ModelSoftmax,
    QuadraticKernel,
    Queue,
    Resampled,
    Tilted,
    Uniform,
    WithinBatch,
)
from headtail.samplers import Draw, Sampler, TableSummary
from headtail.samplers.model.adversarial import TREE_UNIFORM_SHARE
from headtail.samplers.model.blocks import Blocks
from headtail.samplers.model.schedule import Scheduled

from . import block_worlds
from .worlds import (
    LABELS,
    PRIOR,
    SCORES,
    L,
    Outcome,
    World,
    inclusion,
    log_uniform,
    middle,
    power,
    scripted,
)

IGNORED = -100
CAPACITY = 3
HIDDEN = torch.tensor([1.0, 0.4, -0.7], dtype=torch.float64)[:, None]
"""Of an example that is looked at, another one, and one that is ignored."""
NEITHER = 0.5
"""A point for rows of a draw that are not looked at."""
IDS = list(range(L))
FLAT = [1 / L] * L
RHO = CustomSeparable(torch.linspace(-1, 1, L), torch.tensor([0.3, -2.0, 0.0, 1.0]))


@dataclass(frozen=True)
class Move:
    """One thing that can happen: its chance, and the points and permutations that cause it."""

    chance: float
    points: list[float] = field(default_factory=list)
    permutations: list[tuple[int, ...]] = field(default_factory=list)
    given: tuple[int, ...] = ()

    def then(self, other: Move) -> Move:
        """Both, one after the other."""
        return Move(
            self.chance * other.chance,
            self.points + other.points,
            self.permutations + other.permutations,
            self.given + other.given,
        )


def filled(sampler: Sampler) -> int:
    """Places of each queue that are taken: fewer than there are, more than are drawn at random."""
    queues = [part for part in sampler.modules() if isinstance(part, Queue)]
    return 2 if any(queue.num_negatives for queue in queues) else min(1, len(queues))


def moves(sampler: Sampler, y: int, past: int) -> list[Move]:
    """All that can happen when this sampler draws for positive y, with so many labels in queues."""
    match sampler:
        case Mixture():
            return _products([moves(part, y, past) for part in sampler.samplers])
        case Hard():
            return moves(sampler.cheap, y, past)
        case WithinBatch():
            return _slots(2, sampler.num_negatives)
        case Queue():
            return _slots(past, sampler.num_negatives)
        case Given():
            return [Move(FLAT[label], given=(label,)) for label in IDS]
        case Uniform() | Frequency() if not sampler.replacement:
            return _systematic(sampler)
        case Uniform() | Frequency() | LogUniform():
            return _inverse(sampler, y)
        case ModelSoftmax() | Tilted():
            q = _mass(sampler)
            m = sampler.num_negatives
            return _rows(_without(q, y) if sampler.exclude_target else q, IDS, m)
        case Blocks():
            return _blocks(sampler)
        case Adversarial():
            return _walks(sampler)
    raise NotImplementedError(type(sampler))


def _products(parts: list[list[Move]]) -> list[Move]:
    whole = [Move(1.0)]
    for part in parts:
        whole = [before.then(after) for before, after in itertools.product(whole, part)]
    return whole


def _slots(size: int, taken: int | None) -> list[Move]:
    if taken is None or taken >= size:
        return [Move(1.0)]
    orders = list(itertools.permutations(range(size)))
    return [Move(1 / len(orders), permutations=[order]) for order in orders]


def _inverse(sampler: Uniform | Frequency | LogUniform, y: int) -> list[Move]:
    layout = IDS
    if isinstance(sampler, Uniform):
        q = FLAT
    elif isinstance(sampler, Frequency):
        q = power(sampler.power)
    else:
        q = log_uniform()
        layout = sorted(IDS, key=lambda y: -PRIOR[y])
    if sampler.exclude_target:
        return _rows(_without(q, y), layout, sampler.num_negatives)
    slot = [Move(q[d], [middle(q, layout, d)]) for d in IDS]
    return _products([slot] * sampler.num_negatives)


def _without(q: list[float], y: int) -> list[float]:
    return [0.0 if label == y else q[label] / (1 - q[y]) for label in IDS]


def _systematic(sampler: Uniform | Frequency) -> list[Move]:
    mass = FLAT if isinstance(sampler, Uniform) else power(sampler.power)
    expected = inclusion(mass, sampler.num_negatives)
    uncertain = [p if p < 1 - 1e-9 else 0.0 for p in expected]
    ends = sorted({0.0, 1.0, *(sum(uncertain[: i + 1]) % 1 for i in IDS)})
    stretches = [(low, high) for low, high in itertools.pairwise(ends) if high - low > 1e-9]
    return [Move(high - low, [(low + high) / 2]) for low, high in stretches]


def _mass(sampler: ModelSoftmax | Tilted) -> list[float]:
    log_mass = SCORES + (RHO.negative if isinstance(sampler, Tilted) else 0.0)
    return log_mass.softmax(0).tolist()


def _rows(q: list[float], layout: list[int], m: int) -> list[Move]:
    """Draws of each row: those of the first one, in one block of labels."""
    slot = [Move(q[d], [middle(q, layout, d)]) for d in IDS if q[d] > 0]
    others = Move(1.0, [NEITHER] * (m * (len(HIDDEN) - 1)))
    return [move.then(others) for move in _products([slot] * m)]


def _blocks(sampler: Blocks) -> list[Move]:
    """One visit, and what is taken there."""
    assert sampler.visits == sampler.share == 1
    chances = block_worlds.mixed(sampler, [1.0])
    rest = len(HIDDEN) - 1
    outcomes = []
    for b, chance in enumerate(chances.blocks):
        visit = Move(chance, [middle(chances.blocks, list(range(len(chances.blocks))), b)])
        visit = visit.then(Move(1.0, [NEITHER] * rest))
        inside = chances.inside[b]
        places = list(range(len(chances.labels[b])))
        slot = [Move(inside[at], [middle(inside, places, at)]) for at in places]
        others = Move(1.0, [NEITHER] * (rest * sampler.num_negatives))
        outcomes += [
            visit.then(taken).then(others) for taken in _products([slot] * sampler.num_negatives)
        ]
    return outcomes


def _walks(sampler: Adversarial) -> list[Move]:
    """Any label by chance, or a walk down the tree of two levels."""
    assert sampler.num_negatives == sampler.share == 1
    slope = sampler.slope.double()[:, 0]
    shift = sampler.shift.double()
    right = (slope + shift).sigmoid().tolist()
    walks = [
        Move(TREE_UNIFORM_SHARE / L, [TREE_UNIFORM_SHARE / 2, (label + 0.5) / L, 0.5, 0.5])
        for label in IDS
    ]
    for first, second in itertools.product((0, 1), repeat=2):
        chance = 1 - TREE_UNIFORM_SHARE
        points = [0.5 + TREE_UNIFORM_SHARE / 2, 0.5]
        for node, turn in ((0, first), (1 + first, second)):
            chance *= right[node] if turn else 1 - right[node]
            points.append(right[node] / 2 if turn else (1 + right[node]) / 2)
        walks.append(Move(chance, points))
    others = Move(1.0, [NEITHER] * (4 * (len(HIDDEN) - 1)))
    return [move.then(others) for move in walks]


def scenes(sampler: Sampler, y: int) -> Iterator[tuple[float, list[int], list[int]]]:
    """All batches of a positive, another label and an ignored target, and all contents of the
    queues.
    """
    kinds = {type(part) for part in sampler.modules()}
    others = IDS if WithinBatch in kinds else [1]
    for other, past in itertools.product(others, itertools.product(IDS, repeat=filled(sampler))):
        chance = math.prod(PRIOR[label] for label in past)
        yield (
            (chance * PRIOR[other] if WithinBatch in kinds else chance),
            [y, other, IGNORED],
            list(past),
        )


def play(sampler: Sampler, batch: list[int], past: list[int], move: Move) -> Draw:
    """The draw of this move, as the first example sees it."""
    arrange(sampler, past, move.given)
    with scripted(move.points, *move.permutations):
        draw = sampler.draw(torch.tensor(batch), input=HIDDEN, weight=SCORES[:, None])
    return first_row(draw)


def arrange(sampler: Sampler, past: list[int], given: tuple[int, ...] = ()) -> None:
    """Fill the queues, and set what was given."""
    sampler.refresh(torch.tensor(past, dtype=torch.int64))
    for part, label in zip(
        (part for part in sampler.modules() if isinstance(part, Given)), given, strict=True
    ):
        part.ids.fill_(label)


def first_row(draw: Draw) -> Draw:
    rows = {"ids": draw.ids, "log_q": draw.log_q}
    if not draw.shared:
        rows = {name: value[:1] for name, value in rows.items()}
    keep = draw.log_keep if isinstance(draw.log_keep, float) else draw.log_keep[:1]
    of_target = None if draw.log_q_target is None else draw.log_q_target[:1]
    return Draw(**rows, log_q_target=of_target, m=draw.m, log_keep=keep, marginal=draw.marginal)


def every_move(sampler: Sampler) -> Callable[[int], Iterator[Outcome]]:
    """All scenes, and all moves in each."""

    def outcomes(y: int) -> Iterator[Outcome]:
        for chance, batch, past in scenes(sampler, y):
            for move in moves(sampler, y, len(past)):
                yield chance * move.chance, play(sampler, batch, past, move)

    return outcomes


def every_pool(sampler: Resampled) -> Callable[[int], Iterator[Outcome]]:
    """All pools, and all of their slots."""

    def outcomes(y: int) -> Iterator[Outcome]:
        for chance, batch, past in scenes(sampler, y):
            for move in moves(sampler.pool, y, len(past)):
                pool = play(sampler.pool, batch, past, move)
                ids = pool.ids.reshape(-1).tolist()
                raw = SCORES[pool.ids.reshape(-1)] - pool.log_q.reshape(-1)
                own = torch.tensor([label == y and set(ids) != {y} for label in ids])
                p = raw.masked_fill(own, -math.inf).softmax(0).tolist()
                for slot in (slot for slot, share in enumerate(p) if share > 0):
                    points = [middle(p, list(range(len(p))), slot), *[NEITHER] * (len(HIDDEN) - 1)]
                    draw = play(sampler, batch, past, move.then(Move(1.0, points)))
                    assert draw.ids.tolist() == [[ids[slot]]]
                    yield chance * move.chance * p[slot], draw

    return outcomes


def _inner() -> dict[str, Sampler]:
    given = Given(
        L, torch.tensor([0]), log_q=lambda ids: torch.full(ids.shape, 1 / L).double().log()
    )
    one_visit = {"share": 1, "visits": 1, "summary": TableSummary(dim=1)}
    beside = [Uniform(L, 1), Queue(LABELS, CAPACITY), WithinBatch(LABELS)]
    return {
        "uniform": Uniform(L, 2),
        "uniform without replacement": Uniform(L, 2, replacement=False),
        "frequency": Frequency(LABELS, 2, 0.5),
        "frequency without replacement": Frequency(LABELS, 2, 0.5, replacement=False),
        "log-uniform": LogUniform(LABELS, 2),
        "within-batch": WithinBatch(LABELS),
        "one within the batch": WithinBatch(LABELS, 1),
        "queue": Queue(LABELS, CAPACITY),
        "one of a queue": Queue(LABELS, CAPACITY, 1),
        "given": given,
        "model": ModelSoftmax(L, 2, exclude_target=False),
        "tilted": Tilted(L, 2, RHO, exclude_target=False),
        "block": Block(L, 2, **one_visit),
        "block, uniform inside": Block(L, 2, inside="uniform", **one_visit),
        "quadratic kernel": QuadraticKernel(L, 2, alpha=3.0, **one_visit),
        "fourier kernel": FourierKernel(L, 2, features=8, **one_visit),
        "adversarial": Adversarial(L, 1, share=1, dim=1),
        "mixture": Mixture(beside),
        "mixture with model": Mixture(
            [ModelSoftmax(L, 1, exclude_target=False), Queue(LABELS, CAPACITY)]
        ),
        "hard": Hard(Uniform(L, 2), 1),
        "hard beside a queue": Hard(Queue(LABELS, CAPACITY), 1),
        "hard within the batch": Hard(WithinBatch(LABELS), 1),
        "hard beside a mixture": Hard(Mixture(beside), 2),
        "mixture with hard": Mixture([Uniform(L, 1), Hard(Queue(LABELS, CAPACITY), 1)]),
    }


OUTER: dict[str, Callable[[Sampler], Sampler]] = {
    "mixture of uniform and": lambda inner: Mixture([Uniform(L, 1), inner]),
    "mixture of a queue and": lambda inner: Mixture([Queue(LABELS, CAPACITY), inner]),
    "hard and": lambda inner: Hard(inner, 2),
}


def _summarised(sampler: Sampler) -> Sampler:
    """The same, with a summary of the model that is not refreshed."""
    arrange(sampler, [0, 1], (0,) * sum(isinstance(part, Given) for part in sampler.modules()))
    sampler.draw(torch.tensor([0, 1, IGNORED]), input=HIDDEN, weight=SCORES[:, None])
    for part in sampler.modules():
        if isinstance(part, Scheduled):
            part.eval()
    return sampler


def _nested() -> list[World]:
    worlds = []
    for outer, wrap in OUTER.items():
        for inner, part in _inner().items():
            sampler = _summarised(wrap(part))
            worlds.append(World(f"{outer} {inner}", sampler, every_move(sampler)))
    return worlds


def _excluding() -> dict[str, Sampler]:
    """Parts that never draw the positive, which only a pool may have."""
    return {
        "uniform, excluded": Uniform(L, 2, exclude_target=True),
        "frequency, excluded": Frequency(LABELS, 2, 0.5, exclude_target=True),
        "log-uniform, excluded": LogUniform(LABELS, 2, exclude_target=True),
        "model, excluded": ModelSoftmax(L, 2),
        "tilted, excluded": Tilted(L, 2, RHO),
    }


def _pools() -> list[World]:
    worlds = []
    for inner, part in (_inner() | _excluding()).items():
        sampler = _summarised(Resampled(part, 1))
        worlds.append(World(f"resampled from {inner}", sampler, every_pool(sampler)))
    return worlds


NESTED = _nested()
"""Samplers inside samplers: their draws carry the q of each label."""
NESTED_POOLS = _pools()
"""Samplers inside a pool: their draws carry what makes a margin's weights unbiased."""
