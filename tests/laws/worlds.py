"""Every outcome of every sampler, with its probability: small label sets, no seeds, no flakes.

A world drives the sampler's own `draw` through all that its randomness can do, by scripting
`torch.rand` and `torch.randperm`. The probabilities are the world's own, written down here from
counts, never asked of the sampler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from unittest import mock

import torch
from torch import Tensor

from headtail import (
    CustomSeparable,
    Frequency,
    Given,
    Hard,
    Labels,
    LogUniform,
    Mixture,
    ModelSoftmax,
    PartialFC,
    Queue,
    Resampled,
    Tilted,
    Uniform,
    WithinBatch,
)
from headtail.core import Margin, Weighting
from headtail.functional import logistic
from headtail.implicit import implied_margin
from headtail.samplers import Draw, FixedSampler, Sampler, Scorer, Step

COUNTS = [2, 12, 5, 1]
LABELS = Labels.from_counts(COUNTS)
L = len(COUNTS)
PRIOR = [c / sum(COUNTS) for c in COUNTS]
SCORES = torch.tensor([0.3, -1.2, 0.7, 1.9], dtype=torch.float64)
MODEL = {"input": torch.ones(1, 1, dtype=torch.float64), "weight": SCORES[:, None]}
"""One hidden state and a label table whose logits are the scores."""

Outcome = tuple[float, Draw]


@dataclass(frozen=True)
class World:
    """A sampler and all that can happen to an example with positive y."""

    name: str
    sampler: Sampler
    enumerate: Callable[[int], Iterator[Outcome]]
    batch_size: int = 1

    def outcomes(self, y: int) -> list[Outcome]:
        """(probability, draw) for all that can happen; the probabilities sum to one."""
        return _outcomes(self, y)

    def log_q(self, y: int, ids: Tensor) -> Tensor:
        """The log q that the sampler reports for labels, for an example with positive y."""
        if isinstance(self.sampler, FixedSampler):
            return self.sampler.log_q(ids, self.batch_size)
        step = Step.expected(torch.tensor([y]), self.batch_size, Scorer(**MODEL))
        return self.sampler.log_q_given(step, ids.reshape(1, -1))[0].reshape(ids.shape)

    def margin(self, weighting: Weighting) -> Margin:
        """What headtail thinks is implied."""
        model = Scorer(**MODEL) if self.sampler.claims.looks_at_model else None
        return implied_margin(self.sampler, weighting, self.batch_size, model)

    def __repr__(self) -> str:
        return self.name


@cache
def _outcomes(world: World, y: int) -> list[Outcome]:
    outcomes = list(world.enumerate(y))
    assert abs(sum(p for p, _ in outcomes) - 1) < 1e-12
    return outcomes


@contextmanager
def scripted(points: list[float] | None = None, *permutations: tuple[int, ...]) -> Iterator[None]:
    """Let `torch.rand` return these points and `torch.randperm` these permutations, in turn."""
    queue = list(points or [])
    orders = list(permutations)

    def rand(*shape: int, dtype: torch.dtype | None = None, **_: object) -> Tensor:
        taken = [queue.pop(0) for _ in range(math.prod(shape))]
        return torch.tensor(taken, dtype=dtype).reshape(shape)

    def randperm(n: int, **_: object) -> Tensor:
        order = orders.pop(0)
        assert len(order) == n
        return torch.tensor(order)

    with mock.patch("torch.rand", rand), mock.patch("torch.randperm", randperm):
        yield
    assert not queue, "the sampler used less randomness than scripted"
    assert not orders, "the sampler used less randomness than scripted"


def power(alpha: float) -> list[float]:
    raw = [p**alpha for p in PRIOR]
    return [r / sum(raw) for r in raw]


def log_uniform() -> list[float]:
    order = sorted(range(L), key=lambda y: -COUNTS[y])
    return [
        math.log((order.index(y) + 2) / (order.index(y) + 1)) / math.log(L + 1) for y in range(L)
    ]


def middle(q: list[float], layout: list[int], y: int) -> float:
    """The middle of y's interval when [0, 1) is laid out in this order."""
    before = sum(q[other] for other in layout[: layout.index(y)])
    return before + q[y] / 2


def independent(
    sampler: Sampler, q: list[float], layout: list[int], m: int
) -> Callable[[int], Iterator[Outcome]]:
    def outcomes(y: int) -> Iterator[Outcome]:
        for drawn in itertools.product(range(L), repeat=m):
            with scripted([middle(q, layout, d) for d in drawn]):
                draw = sampler.draw(torch.tensor([y]))
            assert draw.ids.tolist() == list(drawn)
            yield math.prod(q[d] for d in drawn), draw

    return outcomes


def excluding(
    sampler: Sampler, q: list[float], layout: list[int], m: int
) -> Callable[[int], Iterator[Outcome]]:
    def outcomes(y: int) -> Iterator[Outcome]:
        others = [other for other in layout if other != y]
        renormalised = [q[other] / (1 - q[y]) for other in range(L)]
        for drawn in itertools.product(others, repeat=m):
            with scripted([middle(renormalised, others, d) for d in drawn]):
                draw = sampler.draw(torch.tensor([y]))
            assert draw.ids.tolist() == [list(drawn)]
            yield math.prod(renormalised[d] for d in drawn), draw

    return outcomes


def inclusion(mass: list[float], m: int) -> list[float]:
    """min(1, c·mass) summing to m, by bisection on c."""
    low = 0.0
    high = 1e9
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if sum(min(1.0, c * x) for x in mass) < m else (low, c)
    return [min(1.0, low * x) for x in mass]


def systematic(sampler: Sampler, expected: list[float]) -> Callable[[int], Iterator[Outcome]]:
    """One offset decides all: every stretch of offsets between two label ends gives one outcome."""

    def outcomes(y: int) -> Iterator[Outcome]:
        uncertain = [p if p < 1 - 1e-9 else 0.0 for p in expected]
        ends = sorted({0.0, 1.0, *(sum(uncertain[: i + 1]) % 1 for i in range(L))})
        for low, high in itertools.pairwise(ends):
            if high - low < 1e-9:
                continue
            with scripted([(low + high) / 2]):
                draw = sampler.draw(torch.tensor([y]))
            assert len(set(draw.ids.tolist())) == draw.ids.numel(), (
                "without replacement means without"
            )
            yield high - low, draw

    return outcomes


def within_batch(
    sampler: Sampler, size: int, taken: int | None = None
) -> Callable[[int], Iterator[Outcome]]:
    """All batches of other examples, and all choices of slots."""
    permutations = (
        [[]] if taken is None else [[order] for order in itertools.permutations(range(size))]
    )

    def outcomes(y: int) -> Iterator[Outcome]:
        for others in itertools.product(range(L), repeat=size - 1):
            chance = math.prod(PRIOR[o] for o in others) / len(permutations)
            for permutation in permutations:
                with scripted([], *permutation):
                    yield chance, sampler.draw(torch.tensor([y, *others]))

    return outcomes


def queue(
    sampler: Queue, past: int, taken: int | None = None
) -> Callable[[int], Iterator[Outcome]]:
    """All histories, in batches of two, longer than the queue."""
    permutations = (
        [[]]
        if taken is None
        else [[order] for order in itertools.permutations(range(sampler.capacity))]
    )

    def outcomes(y: int) -> Iterator[Outcome]:
        for history in itertools.product(range(L), repeat=past):
            chance = math.prod(PRIOR[h] for h in history) / len(permutations)
            for permutation in permutations:
                with scripted([], *permutation):
                    sampler.refresh(torch.tensor(history[:0], dtype=torch.int64))
                    for start in range(0, past, 2):
                        sampler.draw(torch.tensor(history[start : start + 2]))
                    yield chance, sampler.draw(torch.tensor([y]))

    return outcomes


def mixed(
    sampler: Mixture, q: list[float], m: int, size: int
) -> Callable[[int], Iterator[Outcome]]:
    """Independent draws from q beside all batches of other examples."""

    def outcomes(y: int) -> Iterator[Outcome]:
        for others in itertools.product(range(L), repeat=size - 1):
            for drawn in itertools.product(range(L), repeat=m):
                chance = math.prod(PRIOR[o] for o in others) * math.prod(q[d] for d in drawn)
                with scripted([middle(q, list(range(L)), d) for d in drawn]):
                    yield chance, sampler.draw(torch.tensor([y, *others]))

    return outcomes


def two_kinds(
    sampler: Mixture, q: list[float], m: int, other: list[float]
) -> Callable[[int], Iterator[Outcome]]:
    """Independent draws from q beside a systematic part."""

    def outcomes(y: int) -> Iterator[Outcome]:
        ends = sorted({0.0, 1.0, *(sum(other[: i + 1]) % 1 for i in range(L))})
        for low, high in itertools.pairwise(ends):
            for drawn in itertools.product(range(L), repeat=m):
                if high - low > 1e-9:
                    with scripted(
                        [*(middle(q, list(range(L)), d) for d in drawn), (low + high) / 2]
                    ):
                        yield (
                            (high - low) * math.prod(q[d] for d in drawn),
                            sampler.draw(torch.tensor([y])),
                        )

    return outcomes


def partial_fc(sampler: PartialFC, size: int) -> Callable[[int], Iterator[Outcome]]:
    """All batches of other examples, beside one offset of a systematic draw."""
    share = sampler.num_negatives / L

    def outcomes(y: int) -> Iterator[Outcome]:
        ends = sorted({0.0, 1.0, *(round(share * (i + 1) % 1, 12) for i in range(L))})
        for others in itertools.product(range(L), repeat=size - 1):
            for low, high in itertools.pairwise(ends):
                with scripted([(low + high) / 2]):
                    draw = sampler.draw(torch.tensor([y, *others]))
                assert {y, *others} <= set(draw.ids.tolist()), "labels of the batch are kept"
                assert len(set(draw.ids.tolist())) == draw.ids.numel()
                yield math.prod(PRIOR[o] for o in others) * (high - low), draw

    return outcomes


def given(q: list[float], m: int, rows: bool) -> Callable[[int], Iterator[Outcome]]:
    """The caller's own independent draws."""
    log_q = torch.tensor(q, dtype=torch.float64).log()

    def outcomes(y: int) -> Iterator[Outcome]:
        for drawn in itertools.product(range(L), repeat=m):
            ids = torch.tensor([drawn] if rows else drawn)
            sampler = Given(L, ids, log_q[ids], log_q[torch.tensor([y])])
            yield math.prod(q[d] for d in drawn), sampler.draw(torch.tensor([y]))

    return outcomes


def one_pass(
    sampler: Sampler, mass: list[float], m: int, excluded: bool
) -> Callable[[int], Iterator[Outcome]]:
    """Two blocks of two labels: all that can happen to each slot, block by block."""

    def slots(y: int) -> Iterator[tuple[float, int, float, float]]:
        w = [0.0 if other == y and excluded else mass[other] for other in range(L)]
        first = w[0] + w[1]
        second = w[2] + w[3]
        share = second / (first + second)
        for one in (0, 1):
            chance = w[one] / first
            at = (w[0] * one + w[one] / 2) / first
            if w[one] > 0:
                yield chance * (1 - share), one, at, (1 + share) / 2
            for two in (2, 3):
                if w[one] > 0 and w[two] > 0:
                    inside = (w[2] * (two - 2) + w[two] / 2) / second
                    yield chance * share * w[two] / second, two, at, share * inside

    def outcomes(y: int) -> Iterator[Outcome]:
        for drawn in itertools.product(list(slots(y)), repeat=m):
            points = [slot[2] for slot in drawn] + [slot[3] for slot in drawn]
            with scripted(points):
                draw = sampler.draw(torch.tensor([y]), model=Scorer(**MODEL, logits_at_once=2))
            assert draw.ids.tolist() == [[slot[1] for slot in drawn]]
            yield math.prod(slot[0] for slot in drawn), draw

    return outcomes


def beside(sampler: Sampler, q: list[float], m: int) -> Callable[[int], Iterator[Outcome]]:
    """Independent cheap draws beside what the scores alone decide."""

    def outcomes(y: int) -> Iterator[Outcome]:
        for drawn in itertools.product(range(L), repeat=m):
            with scripted([middle(q, list(range(L)), d) for d in drawn]):
                yield math.prod(q[d] for d in drawn), sampler.draw(torch.tensor([y]), **MODEL)

    return outcomes


def resampled(
    sampler: Sampler, q: list[float], size: int, m: int
) -> Callable[[int], Iterator[Outcome]]:
    """All pools, and all that can be drawn from each."""
    ids = list(range(L))

    def outcomes(y: int) -> Iterator[Outcome]:
        for pool in itertools.product(ids, repeat=size):
            raw = [
                0.0 if one == y and set(pool) != {y} else math.exp(SCORES[one]) / q[one]
                for one in pool
            ]
            p = [r / sum(raw) for r in raw]
            for slots in itertools.product([s for s in range(size) if p[s] > 0], repeat=m):
                points = [middle(q, ids, one) for one in pool] + [
                    middle(p, list(range(size)), s) for s in slots
                ]
                with scripted(points):
                    draw = sampler.draw(torch.tensor([y]), **MODEL)
                assert draw.ids.tolist() == [[pool[s] for s in slots]]
                yield math.prod(q[one] for one in pool) * math.prod(p[s] for s in slots), draw

    return outcomes


def _model_worlds() -> list[World]:
    e = SCORES.exp().tolist()
    margin = CustomSeparable(torch.linspace(-1, 1, L), torch.tensor([0.3, -2.0, 0.0, 1.0]))
    rho = margin.negative.exp().tolist()
    heavy = [r * math.log1p(x) for r, x in zip(rho, e, strict=True)]
    softmax = ModelSoftmax(L, 2)
    masked = ModelSoftmax(L, 2, exclude_target=False)
    tilted = Tilted(L, 2, margin)
    pieces = Tilted(LABELS, 2, margin, logistic, exclude_target=False)
    hard = Hard(Frequency(LABELS, 2, 0.5), 2)
    root = power(0.5)
    both = Mixture([Uniform(L, 2), Hard(Uniform(L, 1), 1)])
    return [
        World("model", softmax, one_pass(softmax, e, 2, True)),
        World("model, masked", masked, one_pass(masked, e, 2, False)),
        World(
            "tilted",
            tilted,
            one_pass(tilted, [r * x for r, x in zip(rho, e, strict=True)], 2, True),
        ),
        World("tilted for logistic pieces, masked", pieces, one_pass(pieces, heavy, 2, False)),
        World("hard", hard, beside(hard, root, 2)),
        World("mixture of uniform and hard", both, beside(both, [1 / L] * L, 3)),
    ]


def _pools() -> list[World]:
    root = power(0.5)
    even = [1 / L] * L
    uniform = Resampled(Uniform(L, 3), 2)
    frequency = Resampled(Frequency(LABELS, 2, 0.5), 2)
    return [
        World("resampled from uniform", uniform, resampled(uniform, even, 3, 2)),
        World("resampled from frequency 0.5", frequency, resampled(frequency, root, 2, 2)),
    ]


def _fixed_worlds() -> list[World]:
    ids = list(range(L))
    ranked = sorted(range(L), key=lambda y: -COUNTS[y])
    flat = [1 / L] * L
    root = power(0.5)
    zipf = log_uniform()
    own = [0.1, 0.2, 0.3, 0.4]
    whole = Given(
        L, torch.tensor([0, 1]), log_q=lambda i: torch.tensor(own, dtype=torch.float64).log()[i]
    )
    uniform = Uniform(L, 3)
    uniform_ex = Uniform(L, 2, exclude_target=True)
    uniform_wo = Uniform(L, 3, replacement=False)
    prior = Frequency(LABELS, 3)
    half = Frequency(LABELS, 2, 0.5)
    half_ex = Frequency(LABELS, 2, 0.5, exclude_target=True)
    half_wo = Frequency(LABELS, 2, 0.5, replacement=False)
    prior_wo = Frequency(LABELS, 3, replacement=False)
    ranks = LogUniform(LABELS, 2)
    ranks_ex = LogUniform(LABELS, 2, exclude_target=True)
    batch = WithinBatch(LABELS)
    some = WithinBatch(LABELS, 2)
    past = Queue(LABELS, 3)
    some_past = Queue(LABELS, 3, 2)
    partial = PartialFC(LABELS, 3)
    beside = Mixture([Uniform(L, 2), WithinBatch(LABELS)])
    kinds = Mixture([half, Uniform(L, 3, replacement=False)])
    return [
        World("uniform", uniform, independent(uniform, flat, ids, 3)),
        World("uniform, excluded", uniform_ex, excluding(uniform_ex, flat, ids, 2)),
        World("uniform, without replacement", uniform_wo, systematic(uniform_wo, [3 / L] * L)),
        World("frequency", prior, independent(prior, PRIOR, ids, 3)),
        World("frequency 0.5", half, independent(half, root, ids, 2)),
        World("frequency 0.5, excluded", half_ex, excluding(half_ex, root, ids, 2)),
        World(
            "frequency 0.5, without replacement", half_wo, systematic(half_wo, inclusion(root, 2))
        ),
        World(
            "frequency, without replacement", prior_wo, systematic(prior_wo, inclusion(PRIOR, 3))
        ),
        World("log-uniform", ranks, independent(ranks, zipf, ranked, 2)),
        World("log-uniform, excluded", ranks_ex, excluding(ranks_ex, zipf, ranked, 2)),
        World("within-batch", batch, within_batch(batch, 4), batch_size=4),
        World("within-batch, two of three", some, within_batch(some, 3, taken=2), batch_size=3),
        World("partial-fc", partial, partial_fc(partial, 3), batch_size=3),
        World("queue", past, queue(past, 4)),
        World("queue, two of three", some_past, queue(some_past, 4, taken=2)),
        World(
            "mixture of uniform and within-batch", beside, mixed(beside, flat, 2, 3), batch_size=3
        ),
        World(
            "mixture of frequency and uniform without replacement",
            kinds,
            two_kinds(kinds, root, 2, [3 / L] * L),
        ),
        World("given", whole, given(own, 2, rows=False)),
        World("given, one row an example", whole, given(own, 2, rows=True)),
    ]


FIXED = _fixed_worlds()
"""Their q does not look at the model."""
WORLDS = FIXED + _model_worlds()
"""Their draws carry the q of each label."""
POOLS = _pools()
"""Their draws carry what makes a margin's weights unbiased, which is not the q of a label."""
