"""What ranks draw by themselves: every outcome of `Stratified` on one to four ranks, `explain` and
`audit`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from headtail import (
    Adaptive,
    Constant,
    CustomSeparable,
    Equalised,
    Frequency,
    FromMargin,
    Importance,
    InfoNCE,
    Labels,
    LogUniform,
    Pairwise,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    audit,
    explain,
)
from headtail.core.placement import Placement
from headtail.functional import logistic, sampled_decoupled, sampled_softmax
from headtail.implicit import implied_margin
from headtail.samplers import Draw
from headtail.samplers.fixed.stratified import Stratified, Stratum, strata_sizes
from tests.laws.worlds import inclusion, scripted

COUNTS = [2, 12, 5, 1, 3, 7, 4]
LABELS = Labels.from_counts(COUNTS)
L = len(COUNTS)
SCORES = torch.tensor([0.3, -1.2, 0.7, 1.9, -0.4, 0.1, 0.9], dtype=torch.float64)
WEIGHTINGS = {
    "constant": Constant(),
    "infonce": InfoNCE(),
    "relative": Relative(),
    "importance": Importance(),
    "tail": Tail(LABELS),
    "from equalised": FromMargin(Equalised(LABELS)),
    "from adaptive": FromMargin(Adaptive(LABELS)),
    "from custom": FromMargin(CustomSeparable(torch.linspace(-1, 1, L), torch.linspace(1, -2, L))),
    "from pairwise": FromMargin(Pairwise(lambda y, other: 0.1 * (y - other) ** 2)),
}
MASSES = {
    "uniform": [1.0] * L,
    "frequency": [float(count) for count in COUNTS],
    "frequency 0.5": [count**0.5 for count in COUNTS],
    "log-uniform": [
        math.log((rank + 2) / (rank + 1))
        for rank in (sorted(range(L), key=lambda y: -COUNTS[y]).index(y) for y in range(L))
    ],
}
"""What each label's q is proportional to, written down from counts."""


@dataclass(frozen=True)
class World:
    """Draws of several ranks. L = 7 leaves the last of two, three and four ranks with fewer labels,
    and m = ranks + 1 gives the first one more draws.
    """

    kind: str
    ranks: int
    grown: tuple[int, ...] = (L,)
    replacement: bool = True

    @property
    def m(self) -> int:
        return self.ranks + 1

    @property
    def sampler(self) -> Stratified:
        return _sampler(self)

    def strata(self) -> list[list[int]]:
        """The labels of each rank."""
        placement = Placement(self.grown)
        shares = [placement.share(rank, self.ranks) for rank in range(self.ranks)]
        return [share.labels().tolist() for share in shares]

    def outcomes(self) -> list[tuple[float, Draw]]:
        return _outcomes(self)

    def __repr__(self) -> str:
        how = "" if self.replacement else ", without replacement"
        grown = f", grown from {self.grown[0]}" if len(self.grown) > 1 else ""
        return f"{self.kind}{how}, {self.ranks} ranks{grown}"


@cache
def _sampler(world: World) -> Stratified:
    how = {"replacement": world.replacement}
    sampler = {
        "uniform": lambda: Uniform(L, world.m, **how),
        "frequency": lambda: Frequency(LABELS, world.m, **how),
        "frequency 0.5": lambda: Frequency(LABELS, world.m, 0.5, **how),
        "log-uniform": lambda: LogUniform(LABELS, world.m),
    }[world.kind]()
    return Stratified(sampler, world.ranks, Placement(world.grown))


@cache
def _outcomes(world: World) -> list[tuple[float, Draw]]:
    """(probability, draw) of all that ranks can draw together."""
    ways = [
        list(_of_stratum([MASSES[world.kind][y] for y in labels], labels, own, world.replacement))
        for labels, own in zip(world.strata(), strata_sizes(world.m, world.ranks), strict=True)
    ]
    outcomes = []
    for parts in itertools.product(*ways):
        points = [point for _, some, _ in parts for point in some]
        with scripted(points):
            draw = world.sampler.draw(torch.tensor([0]))
        expected = [label for _, _, labels in parts for label in labels]
        if world.replacement:
            assert draw.ids.tolist() == expected
        outcomes.append((math.prod(chance for chance, _, _ in parts), draw))
    assert abs(sum(p for p, _ in outcomes) - 1) < 1e-12
    return outcomes


def _of_stratum(
    mass: list[float], labels: list[int], own: int, replacement: bool
) -> Iterator[tuple[float, list[float], list[int]]]:
    """(probability, random points, labels) of all that one rank can draw."""
    q = [part / sum(mass) for part in mass]
    if replacement:
        starts = [sum(q[:place]) for place in range(len(q))]
        for places in itertools.product(range(len(q)), repeat=own):
            chance = math.prod(q[place] for place in places)
            points = [starts[place] + q[place] / 2 for place in places]
            yield chance, points, [labels[place] for place in places]
        return
    uncertain = [p if p < 1 - 1e-9 else 0.0 for p in inclusion(mass, own)]
    ends = sorted({0.0, 1.0, *(sum(uncertain[: i + 1]) % 1 for i in range(len(q)))})
    for low, high in itertools.pairwise(ends):
        if high - low > 1e-9:
            yield high - low, [(low + high) / 2], []


WORLDS = [World(kind, ranks) for kind in MASSES for ranks in (1, 2, 3, 4)]
WORLDS += [World(kind, ranks, (4, 3)) for kind in MASSES for ranks in (2, 3, 4)]
WORLDS += [
    World(kind, ranks, replacement=False)
    for kind in ("uniform", "frequency 0.5")
    for ranks in (1, 2, 3)
]
each_world = pytest.mark.parametrize("world", WORLDS, ids=repr)
each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)


def loss_of(world: World, draw: Draw, y: int, weighting, loss, *args) -> torch.Tensor:
    """The loss of an example with positive y, from its logits."""
    target = torch.tensor([y])
    described = world.sampler.describe(draw.ids, target, draw.m)
    a, b = weighting.offsets(described, target)
    mask = (draw.ids == y)[None]
    return loss(SCORES[target], SCORES[draw.ids][None], a, b, mask, *args)


@each_world
def test_labels_are_drawn_as_often_as_the_draw_claims(world: World):
    for label in range(L):
        count = sum(p * int((draw.ids == label).sum()) for p, draw in world.outcomes())
        claimed = world.m * float(world.sampler.log_q(torch.tensor(label)).exp())
        assert count == pytest.approx(claimed, rel=1e-12)
    for _, draw in world.outcomes():
        assert draw.m == world.m == len(draw.ids)
        assert torch.equal(draw.log_q, world.sampler.log_q(draw.ids))


@each_world
def test_q_is_the_rank_s_share_of_draws_times_the_sampler_s_q_among_its_labels(world: World):
    mass = MASSES[world.kind]
    sizes = strata_sizes(world.m, world.ranks)
    for labels, own in zip(world.strata(), sizes, strict=True):
        included = inclusion([mass[y] for y in labels], own)
        total = sum(mass[y] for y in labels)
        for y, certain in zip(labels, included, strict=True):
            times = own * mass[y] / total if world.replacement else certain
            q = float(world.sampler.log_q(torch.tensor(y)).exp())
            assert q == pytest.approx(times / world.m, rel=1e-12)


@each_world
@each_weighting
def test_the_mean_loss_is_that_of_the_implied_margin(world: World, weighting: str):
    w = WEIGHTINGS[weighting]
    margin = implied_margin(world.sampler, w)
    y = 3
    others = torch.arange(L) != y
    rho = margin.log_rho(torch.tensor([y]), torch.arange(L))[0].exp()
    mean = sum(
        p * float(loss_of(world, draw, y, w, sampled_decoupled, logistic))
        for p, draw in world.outcomes()
    )
    truth = logistic.positive(SCORES[y]) + (rho * logistic.negative(-SCORES))[others].sum()
    assert mean == pytest.approx(float(truth), rel=1e-11)
    inside = sum(
        p * float(loss_of(world, draw, y, w, sampled_softmax).exp()) for p, draw in world.outcomes()
    )
    truth = 1 + (rho * (SCORES - SCORES[y]).exp())[others].sum()
    assert inside == pytest.approx(float(truth), rel=1e-11)


@each_world
@pytest.mark.parametrize("name", [name for name in WEIGHTINGS if name.startswith("from")])
def test_weights_from_a_margin_imply_that_margin(world: World, name: str):
    """Against the margin itself, not against what headtail thinks is implied."""
    w = WEIGHTINGS[name]
    y = 4
    others = torch.arange(L) != y
    rho = w.margin.log_rho(torch.tensor([y]), torch.arange(L))[0].exp()
    mean = sum(
        p * float(loss_of(world, draw, y, w, sampled_decoupled, logistic))
        for p, draw in world.outcomes()
    )
    truth = logistic.positive(SCORES[y]) + (rho * logistic.negative(-SCORES))[others].sum()
    assert mean == pytest.approx(float(truth), rel=1e-11)


@each_world
def test_explain_reports_the_true_variance(world: World):
    y = 2
    w = WEIGHTINGS["tail"]
    loss = SampledDecoupledLoss(world.sampler, w, logistic)
    found = explain(loss, LABELS, scores=SCORES[None], target=torch.tensor([y])).examples[0]
    outcomes = [
        (p, float(loss_of(world, draw, y, w, sampled_decoupled, logistic)))
        for p, draw in world.outcomes()
    ]
    mean = sum(p * x for p, x in outcomes)
    variance = sum(p * (x - mean) ** 2 for p, x in outcomes)
    assert found.implicit_loss == pytest.approx(mean, rel=1e-11)
    assert found.variance == pytest.approx(variance, rel=1e-9, abs=1e-12)


def test_ranks_that_draw_apart_are_less_noisy_than_one():
    w = WEIGHTINGS["importance"]
    variances = []
    for ranks in (1, 2):
        loss = SampledDecoupledLoss(Stratified(Uniform(L, 4), ranks), w, logistic)
        found = explain(loss, LABELS, scores=SCORES[None], target=torch.tensor([2]))
        variances.append(found.examples[0].variance)
    assert variances[1] < variances[0]


def test_explain_names_what_importance_and_tail_weights_optimise():
    sampler = Stratified(Frequency(LABELS, 8, 0.5), 3)
    plain = explain(SampledSoftmaxLoss(sampler, Importance()), LABELS)
    adjusted = explain(SampledSoftmaxLoss(sampler, Tail(LABELS)), LABELS)
    alone = Frequency(LABELS, 8, 0.5)
    assert plain.name == explain(SampledSoftmaxLoss(alone, Importance()), LABELS).name
    assert adjusted.name == explain(SampledSoftmaxLoss(alone, Tail(LABELS)), LABELS).name


LARGER = Labels.zipf(101)
LARGE = {
    "uniform": Uniform(LARGER, 16),
    "uniform, without replacement": Uniform(LARGER, 16, replacement=False),
    "frequency": Frequency(LARGER, 16),
    "frequency 0.5, without replacement": Frequency(LARGER, 16, 0.5, replacement=False),
    "log-uniform": LogUniform(LARGER, 16),
}


@pytest.mark.parametrize("kind", LARGE)
def test_audit_passes(kind: str):
    sampler = Stratified(LARGE[kind], 3)
    found = audit(sampler, LARGER, draws=1000, generator=torch.Generator().manual_seed(1))
    assert found.passed


@pytest.mark.parametrize("kind", ["uniform", "frequency"])
def test_audit_rejects_the_q_of_one_process(kind: str):
    """A mutation: ranks draw from their own labels, but claim what one process would."""
    sampler = Stratified(LARGE[kind], 4)
    claimed = LARGE[kind].log_q(torch.arange(101))
    found = audit(
        sampler, LARGER, log_q=claimed, draws=2000, generator=torch.Generator().manual_seed(1)
    )
    assert not found.passed


def test_audit_rejects_a_stratum_that_forgets_its_share_of_the_draws():
    """A mutation: one rank makes 6 of 16 draws, and claims half of them."""
    sampler = Stratified(LARGE["uniform"], 3)
    stratum = sampler.strata[0]
    assert isinstance(stratum, Stratum)
    stratum.log_part = -math.log(2)
    found = audit(sampler, LARGER, draws=1000, generator=torch.Generator().manual_seed(1))
    assert not found.passed


def test_a_grown_sampler_draws_from_grown_strata():
    sampler = Stratified(Uniform(5, 4), 2)
    grown = sampler.for_labels(Labels.from_counts([1] * 8))
    assert grown.placement.grown == (5, 3)
    every = torch.arange(8)
    assert float(grown.log_q(every).exp().sum()) == pytest.approx(1)
