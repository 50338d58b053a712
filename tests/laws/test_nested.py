"""Samplers inside samplers: each label has one q in a batch, and is drawn as often as it says."""

from __future__ import annotations

import math

import pytest
import torch

from headtail import Given
from headtail.core.targets import Pairs
from headtail.samplers import Draw, Scorer, Step

from .nested_worlds import HIDDEN, NESTED, NESTED_POOLS, arrange, filled, scenes
from .worlds import SCORES, L, World

each_nesting = pytest.mark.parametrize("world", NESTED, ids=repr)
each_positive = pytest.mark.parametrize("y", [1, 3])


def counted(draw: Draw, label: int) -> float:
    """The sum of the importance weights of a label."""
    keep = math.exp(draw.log_keep if isinstance(draw.log_keep, float) else float(draw.log_keep[0]))
    return keep * float(((draw.ids == label) / (draw.m * draw.log_q.exp())).sum())


@each_nesting
@each_positive
def test_a_label_has_one_q_in_all_draws_of_a_batch_and_comes_as_often(world: World, y: int):
    outcomes = world.outcomes(y)
    (m,) = {draw.m for _, draw in outcomes}
    for other in set(range(L)) - {y}:
        carried = [q for _, draw in outcomes for q in draw.log_q[draw.ids == other].exp().tolist()]
        assert max(carried) - min(carried) < 1e-12
        copies = sum(p * int((draw.ids == other).sum()) for p, draw in outcomes)
        assert copies == pytest.approx(m * carried[0], rel=1e-12)


@each_nesting
def test_a_sampler_reports_the_q_and_the_m_of_the_very_step_it_draws_for(world: World):
    sampler = world.sampler
    for _, batch, past in scenes(sampler, 1):
        arrange(sampler, past, (0,) * sum(isinstance(part, Given) for part in sampler.modules()))
        model = Scorer(HIDDEN, SCORES[:, None])
        step = Step(Pairs.of(torch.tensor(batch)), model)
        log_q = sampler.log_q_given(step, torch.arange(L))
        m = sampler.m_given(step)
        assert float(log_q[0].exp().sum()) == pytest.approx(1, rel=1e-12)
        draw = sampler.draw(torch.tensor(batch), input=model.input, weight=model.weight)
        assert draw.m == m
        rows = [0, 1]  # the third is ignored
        ids = draw.ids.expand(3, -1)[rows]
        carried = draw.log_q.expand(3, -1)[rows]
        assert torch.allclose(carried, log_q[rows].gather(1, ids), rtol=0, atol=1e-12)
        of_target = log_q[rows].gather(1, torch.tensor(batch)[rows, None]).squeeze(1)
        assert torch.allclose(draw.log_q_target[rows], of_target, rtol=0, atol=1e-12)


WITHOUT_QUEUE = [world for world in NESTED if filled(world.sampler) == 0]


@pytest.mark.parametrize("world", WITHOUT_QUEUE, ids=repr)
@each_positive
def test_the_variance_given_a_batch_size_is_that_of_all_outcomes(world: World, y: int):
    """For a single example in a batch of known size: two examples count in each of these."""
    term = torch.tensor([[0.5, -1.0, 3.0, 0.25]], dtype=torch.float64)
    term[0, y] = 0.0
    outcomes = [(p, float(term[0, draw.ids].sum())) for p, draw in world.outcomes(y)]
    mean = sum(p * x for p, x in outcomes)
    step = Step.expected(torch.tensor([y]), 2, Scorer(HIDDEN[:1], SCORES[:, None]))
    claimed = world.sampler.variance_given(step, term)
    if claimed is None:
        kinds = {type(part) for part in world.sampler.modules()}
        assert Given in kinds, "all others have a formula"
    else:
        assert float(claimed) == pytest.approx(
            sum(p * (x - mean) ** 2 for p, x in outcomes), rel=1e-9
        )


@pytest.mark.parametrize("world", NESTED_POOLS, ids=repr)
@each_positive
def test_a_label_counts_once_on_average_when_drawn_from_a_pool_of_any_kind(world: World, y: int):
    outcomes = world.outcomes(y)
    for other in set(range(L)) - {y}:
        mean = sum(p * counted(draw, other) for p, draw in outcomes)
        assert mean == pytest.approx(1, rel=1e-12)
